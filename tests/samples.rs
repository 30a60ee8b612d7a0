//! Every sample of every operator is a named test: `cargo test -p autobwd-tests --test samples relu`.

use autobwd::check;
use autobwd_ops as _;
use libtest_mimic::{Arguments, Trial};

#[global_allocator]
static ALLOCATOR: check::CountingAllocator = check::CountingAllocator;

/// Expected warnings: operator, and text of the warning.
const KNOWN: &[(&str, &str)] = &[
    // Updates are not differentiated.
    ("adadelta", "the operator declares `NoGrad`"),
    ("adagrad", "the operator declares `NoGrad`"),
    ("adam", "the operator declares `NoGrad`"),
    ("adamax", "the operator declares `NoGrad`"),
    ("adamw", "the operator declares `NoGrad`"),
    ("decayed_adagrad", "the operator declares `NoGrad`"),
    ("lamb", "the operator declares `NoGrad`"),
    ("lars_momentum", "the operator declares `NoGrad`"),
    ("momentum", "the operator declares `NoGrad`"),
    ("rmsprop", "the operator declares `NoGrad`"),
    ("sgd", "the operator declares `NoGrad`"),
    ("matmul_v2_grad_sgd", "the operator declares `NoGrad`"),
    // The rank of the output depends on these dimensions.
    ("gather_nd", "an error where dimensions are unknown"),
    ("squeeze2", "an error where dimensions are unknown"),
    // A variance; small negative ones are possible because of epsilon.
    ("batch_norm", "input `Variance` has no negative numbers"),
    // Attributes that the reference has, and that change nothing here, or nothing for dense inputs.
    ("adam", "attribute `lazy_mode` has no effect"),
    ("adamw", "attribute `lazy_mode` has no effect"),
    ("momentum", "attribute `lazy_mode` has no effect"),
    ("bilinear_interp_v2", "attribute `out_d` has no effect"),
    ("nearest_interp_v2", "attribute `out_d` has no effect"),
    ("nearest_interp_v2", "attribute `align_mode` has no effect"),
    ("linear_interp_v2", "attribute `out_d` has no effect"),
    ("linear_interp_v2", "attribute `out_h` has no effect"),
    ("bicubic_interp_v2", "attribute `out_d` has no effect"),
    ("deformable_conv", "attribute `im2col_step` has no effect"),
    ("deformable_conv_v1", "attribute `im2col_step` has no effect"),
    ("dropout", "attribute `fix_seed` has no effect"),
    ("eigvalsh", "attribute `is_test` has no effect"),
    ("frobenius_norm", "dtype` has no effect"),
    ("lookup_table", "attribute `is_sparse` has no effect"),
    ("lookup_table_v2", "attribute `is_sparse` has no effect"),
    ("margin_cross_entropy", "attribute `return_softmax` has no effect"),
    ("margin_cross_entropy", "attribute `ring_id` has no effect"),
    ("mish", "attribute `threshold` has no effect"),
    ("norm", "attribute `is_test` has no effect"),
    ("p_norm", "attribute `epsilon` has no effect"),
    ("pow2_decay_with_linear_warmup", "input `LearningRate` has no effect"),
    ("rms_norm", "attribute `quant_round_type` has no effect"),
    ("rms_norm", "attribute `quant_max_bound` has no effect"),
    ("rms_norm", "attribute `quant_min_bound` has no effect"),
    ("reduce_all", "attribute `out_dtype` has no effect"),
    ("reduce_any", "attribute `out_dtype` has no effect"),
    ("reduce_amax", "attribute `in_dtype` has no effect"),
    ("reduce_amin", "attribute `in_dtype` has no effect"),
    ("reduce_max", "attribute `in_dtype` has no effect"),
    ("reduce_min", "attribute `in_dtype` has no effect"),
    ("reduce_prod", "attribute `in_dtype` has no effect"),
    ("reduce_sum", "attribute `in_dtype` has no effect"),
    ("rnn", "attribute `seed` has no effect"),
    ("set_value", "attribute `dtype` has no effect"),
    ("softmax_with_cross_entropy", "attribute `numeric_stable_mode` has no effect"),
    ("top_k_v2", "attribute `sorted` has no effect"),
    // Their compositions take apart an axis whose length must be known.
    // The output has as many dimensions as `ShapeTensor` has elements.
    ("gaussian_random", "the composition fails where dimensions are unknown"),
    ("randint", "the composition fails where dimensions are unknown"),
    ("uniform_random", "the composition fails where dimensions are unknown"),
    // It counts the labels.
    ("accuracy", "no input changes output `Total`"),
    ("rnn", "no input changes output `DropoutState`"),
    // A changed number keeps its rank.
    ("nanmedian", "no input changes output `MedianIndex`"),
    // A step is too small for another choice.
    ("allclose", "tol` has no effect"),
    ("isclose", "tol` has no effect"),
    ("multinomial", "input `X` has no effect"),
    // Weights are not negative.
    ("multinomial", "input `X` has no negative numbers"),
    // It depends on the seed.
    ("rrelu", "no input changes output `Noise`"),
    // A small change moves no maximum.
    ("lu", "no input changes output `Pivots`"),
    ("max_pool2d_with_index", "no input changes output `Mask`"),
    ("max_pool3d_with_index", "no input changes output `Mask`"),
    // Scales are positive.
    ("check_finite_and_unscale", "input `Scale` has no negative numbers"),
    ("fake_quantize_dequantize_moving_average_abs_max", "has no negative numbers"),
    ("update_loss_scaling", "input `PrevLossScaling` has no negative numbers"),
    // A changed number stays finite, or not.
    ("check_finite_and_unscale", "no input changes output `FoundInfinite`"),
    ("isfinite_v2", "input `X` has no effect"),
    ("isinf_v2", "input `X` has no effect"),
    ("isnan_v2", "input `X` has no effect"),
];

fn main() {
    let samples = autobwd_tests::linked_samples();
    let is_repeated = std::env::var_os("AUTOBWD_ISA").is_some();
    let mut trials = vec![Trial::test("samples_of_the_library_leave_nothing_out", || {
        let (mut gaps, mut corners) = (vec![], vec![]);
        for package in ["autobwd-core", "autobwd-ops"] {
            let found = check::check_coverage(package)?;
            gaps.extend(found.gaps);
            corners.extend(found.corners);
        }
        let known = |said: &str| {
            KNOWN.iter().any(|(op, text)| said.contains(&format!("`{op}`")) && said.contains(text))
        };
        gaps.extend(corners.into_iter().filter(|corner| !known(corner)));
        if gaps.is_empty() { Ok(()) } else { Err(gaps.join("\n").into()) }
    })];
    let mut row = 0;
    let mut last = "";
    for sample in samples {
        row = if sample.op() == last { row + 1 } else { 0 };
        last = sample.op();
        let name = format!("{}::{row}", sample.op());
        trials.push(Trial::test(name, move || {
            let check = if is_repeated { check::check_sample_alone } else { check::check_sample };
            let checked = check(&sample)?;
            let new = |warning: &&String| {
                !KNOWN.iter().any(|(op, text)| *op == sample.op() && warning.contains(text))
            };
            match (checked.warnings.iter().find(new), checked.elements, checked.second_order) {
                (Some(warning), ..) => Err(warning.into()),
                (_, 1.., 0) => Err("there is no second order to check".into()),
                _ => Ok(()),
            }
        }));
    }
    // Kernels and formulas are chosen for the machine; this also runs those of other instruction sets.
    if !is_repeated {
        for isa in ["avx2", "baseline"] {
            let again = move || Ok(autobwd_tests::run_again(isa, "::")?);
            trials.push(Trial::test(format!("every_sample_with_{isa}"), again));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}
