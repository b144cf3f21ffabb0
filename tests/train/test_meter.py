# SPDX-License-Identifier: Apache-2.0
"""What the speed of a run is a share of."""

from types import SimpleNamespace

import jax
import pytest

from dovetail.train._meter import Meter, Peak, peak_of


def described(kind: str, count: int, platform: str) -> list[SimpleNamespace]:
    return [SimpleNamespace(device_kind=kind, platform=platform)] * count


@pytest.mark.parametrize(
    "kind, count, dtype, flops",
    [
        ("TPU v4", 4, "bfloat16", 4 * 275e12),
        ("TPU v5 lite", 8, "bfloat16", 8 * 197e12),
        ("TPU v5p", 256, "bfloat16", 256 * 459e12),
        ("TPU v5", 256, "bfloat16", 256 * 459e12),  # As libtpu calls a v5p.
        ("TPU v6 lite", 1, "bfloat16", 918e12),
        ("TPU7x", 8, "bfloat16", 4 * 2307e12),  # Two devices are one chip.
        ("NVIDIA A100-SXM4-80GB", 8, "bfloat16", 8 * 312e12),
        ("NVIDIA H100 80GB HBM3", 512, "bfloat16", 512 * 989.4e12),
        ("NVIDIA H100 80GB HBM3", 8, "float32", 8 * 989.4e12),  # No figure for it: that of bfloat16.
        ("NVIDIA H200", 8, "bfloat16", 8 * 989.4e12),
        ("NVIDIA B200", 8, "bfloat16", 8 * 2250e12),
    ],
)
def test_the_peak_is_that_of_all_devices_from_the_catalogue(kind, count, dtype, flops):
    peak = peak_of(described(kind, count, "tpu" if "TPU" in kind else "cuda"), dtype)
    assert peak.flops == pytest.approx(flops)
    assert peak.text.endswith(f"TFLOP/s, bfloat16 products of {count} x {kind}")


@pytest.mark.parametrize("kind", ["NVIDIA H100 PCIe", "TPU v9", "NC_v3"])
def test_a_chip_that_is_not_in_the_catalogue_has_no_share_and_says_so(kind):
    peak = peak_of(described(kind, 8, "cuda"), "bfloat16")
    assert peak.flops is None
    assert f"calls itself {kind!r}" in peak.text
    meter = Meter("token", peak)
    meter.add(100.0, 6e9)
    meter.add(100.0, 6e9)
    assert "mfu" not in meter.read()


def test_the_share_is_of_all_units_by_all_devices(monkeypatch):
    now = iter([0.0, 0.0, 2.0, 2.0])
    monkeypatch.setattr("dovetail.train._meter.time.perf_counter", lambda: next(now))
    meter = Meter("image", Peak(8 * 100e12, ""))
    meter.add(1e6, 1.0)  # The first step compiles: it is not counted.
    meter.add(6e4, 6e9)
    meter.add(4e4, 3e9)  # Another shape.
    found = meter.read()
    assert found["mfu"] == pytest.approx((6e4 * 6e9 + 4e4 * 3e9) / 2.0 / 8e14)
    assert found["images_per_second"] == 1e5 / 2.0


def test_the_time_that_devices_wait_for_data_is_a_share_of_what_passed_since_the_last_reading(monkeypatch):
    now = iter([0.0, 1.0, 5.0, 5.0])
    monkeypatch.setattr("dovetail.train._meter.time.perf_counter", lambda: next(now))
    waited = iter([0.0, 2.0, 3.0, 3.0])
    meter = Meter("token", Peak(None, ""), lambda: next(waited))
    meter.add(1e6, 1.0)  # The first step compiles, and what was waited until then does not count.
    meter.add(100.0, 1.0)
    assert meter.read()["data_wait"] == 0.25


def test_of_a_cpu_the_peak_is_measured(monkeypatch):
    monkeypatch.setattr("dovetail.train._meter.measured_peak", lambda: 5e10)
    peak = peak_of(jax.devices(), "bfloat16")
    assert peak == Peak(5e10, "50 GFLOP/s, float32 products as measured here")
