# SPDX-License-Identifier: Apache-2.0
"""What a config file from elsewhere may name besides configs: functions that compute, and types.

None of them can reach a file, the network, a process or pickle, whatever it is called with; `from_json` takes these by
their whole paths, and never a module. Functions that are given here may be called when a config is built. They get no
components, which may read files, as arguments.
"""

_FUNCTIONS = {
    "dovetail.module": "constant normal variance_scaling",
    "dovetail.ops": "clamped_swiglu erf_gelu gated squared_relu",
    "dovetail.optim": "is_hidden_matrix is_matrix unit_norm",
    "jax.lax": "erf erf_inv logistic rsqrt stop_gradient",
    "jax.nn": """
        celu elu gelu glu hard_sigmoid hard_silu hard_tanh identity leaky_relu log_sigmoid log_softmax logsumexp
        mish relu relu6 selu sigmoid silu soft_sign softmax softplus sparse_plus sparse_sigmoid squareplus
        standardize
    """,
    "jax.nn.initializers": """
        constant delta_orthogonal glorot_normal glorot_uniform he_normal he_uniform lecun_normal lecun_uniform
        normal ones orthogonal truncated_normal uniform variance_scaling zeros
    """,
    "jax.numpy": """
        abs absolute arctan cbrt clip cos cosh exp exp2 expm1 log log1p log2 maximum minimum negative positive
        power reciprocal sign sin sinc sinh sqrt square tan tanh
    """,
    "optax": """
        adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan adaptive_grad_clip
        add_decayed_weights add_noise amsgrad apply_every apply_if_finite centralize chain clip
        clip_by_block_rms clip_by_global_norm conditionally_mask conditionally_transform constant_schedule
        cosine_decay_schedule cosine_onecycle_schedule ema exponential_decay flatten freeze fromage identity
        inject_hyperparams inject_stateful_hyperparams join_schedules keep_params_nonnegative lamb lars lbfgs
        linear_onecycle_schedule linear_schedule lion lookahead masked measure_with_ema named_chain noisy_sgd
        normalize_by_update_norm novograd optimistic_adam optimistic_adam_v2 optimistic_gradient_descent
        partition piecewise_constant_schedule piecewise_interpolate_schedule polyak_sgd polynomial_schedule
        radam rmsprop rprop scale scale_by_adadelta scale_by_adam scale_by_adamax scale_by_adan scale_by_amsgrad
        scale_by_backtracking_linesearch scale_by_belief scale_by_distance_over_gradients scale_by_factored_rms
        scale_by_lbfgs scale_by_learning_rate scale_by_lion scale_by_novograd scale_by_optimistic_gradient
        scale_by_param_block_norm scale_by_param_block_rms scale_by_polyak scale_by_radam scale_by_rms
        scale_by_rprop scale_by_rss scale_by_schedule scale_by_sign scale_by_sm3 scale_by_stddev
        scale_by_trust_ratio scale_by_yogi scale_by_zoom_linesearch selective_transform set_to_zero sgd
        sgdr_schedule sign_sgd signum sm3 snapshot stateless stateless_with_tree_map trace
        warmup_constant_schedule warmup_cosine_decay_schedule warmup_exponential_decay_schedule
        with_extra_args_support yogi zero_nans
    """,
}
_TYPES = {
    "builtins": "bool bytes complex dict float frozenset int list str tuple",
    "jax.lax": "Precision",
    "jax.numpy": """
        bfloat16 bool complex128 complex64 float16 float32 float4_e2m1fn float64 float8_e4m3b11fnuz
        float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int16 int32 int4 int64 int8
        uint16 uint32 uint4 uint64 uint8
    """,
    "ml_dtypes": """
        bfloat16 float4_e2m1fn float6_e2m3fn float6_e3m2fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz
        float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu int1 int2 int4 uint1 uint2
        uint4
    """,
    "numpy": """
        bool complex128 complex64 float16 float32 float64 int16 int32 int64 int8 uint16 uint32 uint64 uint8
    """,
}


def _paths(names: dict[str, str]) -> frozenset[str]:
    return frozenset(f"{module}:{name}" for module, below in names.items() for name in below.split())


FUNCTIONS = _paths(_FUNCTIONS)  # May be called when a config is built.
TYPES = _paths(_TYPES)  # May be values of fields.
