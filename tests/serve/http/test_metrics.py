# SPDX-License-Identifier: Apache-2.0
"""`/metrics`: the names that dashboards for vLLM ask for, with the right numbers."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

from support.fake_device import FakeDevice, shape_of
from support.http_server import running


def metrics(server) -> dict[str, float]:
    """What is measured, without the names of the model and of buckets."""
    response = server.client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "scripted"
            found["/".join((sample.name, *sample.labels.values()))] = sample.value
    return found


def test_what_was_done_is_counted():
    shape = shape_of(vocab_size=256, max_length=128, groups=(shape_of().groups[0]._replace(pages=160),))
    with running(FakeDevice(shape)) as server:
        before = metrics(server)
        assert (before["vllm:num_requests_running"], before["vllm:kv_cache_usage_perc"]) == (0, 0)
        prompt = list(range(40))
        for _ in range(2):
            server.completion(prompt, max_tokens=5)
        server.completion(prompt, max_tokens=5, stop_token_ids=list(range(256)))
        server.error("/v1/completions", {"prompt": ""})
        found = metrics(server)
    assert found["vllm:prompt_tokens_total"] == found["vllm:prefix_cache_queries_total"] == 120
    assert found["vllm:prefix_cache_hits_total"] == 72
    assert found["vllm:generation_tokens_total"] >= 11  # A token may have been drawn before the stop was known.
    assert found["vllm:request_success_total/length"] == 2
    assert found["vllm:request_success_total/stop"] == 1
    assert found["vllm:request_success_total/abort"] == 0
    assert found["vllm:time_to_first_token_seconds_count"] == found["vllm:e2e_request_latency_seconds_count"] == 3
    assert found["vllm:inter_token_latency_seconds_count"] == 8
    assert found["vllm:request_time_per_output_token_seconds_count"] == 2
    assert found["vllm:num_requests_waiting"] == found["vllm:num_preemptions_total"] == 0
    assert found["vllm:e2e_request_latency_seconds_sum"] > found["vllm:time_to_first_token_seconds_sum"] > 0


def test_a_client_that_goes_is_counted_as_an_abort(server):
    server.device.seconds = 0.05
    try:
        body = {"prompt": "Hi", "max_tokens": 400, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            next(response.iter_lines())
    finally:
        server.device.seconds = 0.0
    assert server.idle()
    assert metrics(server)["vllm:request_success_total/abort"] == 1
