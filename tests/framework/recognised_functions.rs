//! Functions that models write out in several operators become single operators, in the forms of exporters.

use autobwd::{
    Builder, DType, Executor, Expr, Feed, New, OpDesc, Program, Result, Scope, Tensor, emit, gradients,
    tensor::Dim,
};
use autobwd_ops::{Math, fill::FillConstant, matmul::MatmulV2, model::recognise, shape::ExpandAsV2};

use crate::support::derivatives::assert_near;

type Activation = fn(&Expr) -> Expr;
type Normalisation = fn(&Expr, &Expr, &Expr) -> Expr;

fn cube(x: &Expr) -> Expr {
    let three = FillConstant { value: 3.0, dtype: x.dtype(), ..FillConstant::of(New) };
    x.pow(&x.builder().emit(three).out)
}

/// Activations as PyTorch's exporters, transformers and TensorFlow's converter write them.
const ACTIVATIONS: &[(&str, Activation)] = &[
    ("gelu", |x| x * &((x / 2.0_f64.sqrt()).erf() + 1.0) * 0.5),
    ("gelu", |x| x * 0.5 * ((x * 0.5_f64.sqrt()).erf() + 1.0)),
    // The root of a half, in float32.
    ("gelu", |x| ((x * f64::from(0.5_f32.sqrt())).erf() * 0.5 + 0.5) * x),
    ("gelu", |x| (((x + &(cube(x) * 0.044_715)) * 0.797_884_56).tanh() + 1.0) * (x * 0.5)),
    ("gelu", |x| x * 0.5 * ((x * 0.797_884_56 * (x.square() * 0.044_715 + 1.0)).tanh() + 1.0)),
    ("silu", |x| x * &x.sigmoid()),
    ("silu", |x| x / &((x * -1.0).exp() + 1.0)),
    ("swish", |x| x * &(x * 1.702).sigmoid()),
    ("mish", |x| x * &x.softplus().tanh()),
    ("mish", |x| x * &(x.exp() + 1.0).log().tanh()),
];

fn mean(x: &Expr) -> Expr {
    x.mean_keepdim(&[-1])
}

/// Normalisations with weights `w` and `b`.
const NORMALISATIONS: &[(&str, Normalisation)] = &[
    ("layer_norm", |x, w, b| {
        let centred = x - &mean(x);
        &centred / &(mean(&centred.square()) + 1e-5).sqrt() * w + b
    }),
    ("layer_norm", |x, w, b| {
        let centred = x - &mean(x);
        &centred * &(mean(&(&centred * &centred)) + 1e-12).rsqrt() * w + b
    }),
    ("layer_norm", |x, w, b| {
        // As TensorFlow's converter writes it.
        let (mean_x, variance) = (mean(x), mean(&(x - &mean(x)).square()));
        let factor = (variance + 1e-3).rsqrt() * w;
        x * &factor + (b - &(&mean_x * &factor))
    }),
    ("layer_norm", |x, _, _| {
        let centred = x - &mean(x);
        &centred / &(mean(&centred.square()) + 1e-6).sqrt()
    }),
    ("layer_norm", |x, w, _| {
        let centred = x - &mean(x);
        w * &(&centred / &(mean(&centred.square()) + 1e-6).sqrt())
    }),
    ("rms_norm", |x, w, _| w * &(x * &(mean(&x.square()) + 1e-6).rsqrt())),
    ("rms_norm", |x, w, _| x * &(mean(&(x * x)) + 1e-5).sqrt().reciprocal() * w),
    ("rms_norm", |x, w, b| x / &(mean(&x.square()) + 1e-5).sqrt() * w + b),
    // The weights of Gemma.
    ("rms_norm", |x, w, _| x * &(mean(&x.square()) + 1e-6).rsqrt() * (w + 1.0)),
];

/// The program of an expression, before and after.
fn recognised(y: &Expr) -> Result<(Program, Program)> {
    let before = (*y.builder().program()?).clone();
    let (mut after, fetched) = (before.clone(), before.expect_var(&y.name())?);
    recognise(&mut after, |var| var == fetched)?;
    Ok((before, after))
}

/// The value of an expression, and the gradients of its sum of squares.
fn values(mut program: Program, y: &str, feeds: &[(&str, &dyn Feed)]) -> Result<Vec<Vec<f64>>> {
    let net = Builder::new();
    net.set_program(program);
    let loss = net.expr(y).square().sum(&[]);
    program = (*net.program()?).clone();
    let inputs: Vec<&str> = feeds.iter().map(|(name, _)| *name).collect();
    let found = gradients(&mut program, &[&loss.name()], &inputs, &Default::default())?;
    let names = found.entries().into_iter().flatten().map(|gradient| program.name(gradient).to_string());
    let fetches: Vec<String> = std::iter::once(y.to_string()).chain(names).collect();
    let fetches: Vec<&str> = fetches.iter().map(String::as_str).collect();
    let fetched = Executor::new().run(&program, &mut Scope::new(), feeds, &fetches)?;
    Ok(fetched.iter().map(Tensor::to_f64s).collect())
}

/// Checks what a form becomes, with its values and gradients.
fn check(expected: &str, dtype: DType, form: impl Fn(&Expr, &Expr, &Expr) -> Expr) -> Result<()> {
    let net = Builder::new();
    let input = |name: &str, dims: &[i64]| net.input(name, dtype, dims);
    let (x, w, b) = (input("x", &[-1, -1, 5]), input("w", &[5]), input("b", &[5]));
    let y = form(&x, &w, &b);
    let (before, after) = recognised(&y)?;
    let types: Vec<&str> = after.root().ops.iter().map(|op| &*op.ty).filter(|ty| *ty != "scale").collect();
    assert_eq!(types, [expected], "{before}\n{after}");
    let numbers =
        |count: usize, by: f64| (0..count).map(|i| (i * 7 % 13) as f64 / by - 1.5).collect::<Vec<_>>();
    let tensor =
        |dims: &[usize], by: f64| Tensor::from_f64s(dtype, dims, &numbers(dims.iter().product(), by));
    let (x, w, b) = (tensor(&[2, 3, 5], 3.0)?, tensor(&[5], 5.0)?, tensor(&[5], 4.0)?);
    let feeds: [(&str, &dyn Feed); 3] = [("x", &x), ("w", &w), ("b", &b)];
    let (written, found) = (values(before, &y.name(), &feeds)?, values(after, &y.name(), &feeds)?);
    assert_eq!(written.len(), found.len());
    let bound = if dtype == DType::F64 { 1e-7 } else { 1e-5 };
    written.iter().zip(&found).for_each(|(written, found)| assert_near(found, written, bound));
    Ok(())
}

#[test]
fn every_form_of_an_activation_is_recognised() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        for (expected, form) in ACTIVATIONS {
            check(expected, dtype, |x, _, _| form(x))?;
        }
    }
    Ok(())
}

#[test]
fn every_form_of_a_normalisation_is_recognised() -> Result<()> {
    for dtype in [DType::F32, DType::F64] {
        for (expected, form) in NORMALISATIONS {
            check(expected, dtype, form)?;
        }
    }
    Ok(())
}

/// Attention of `q`, `k` and `v` of `[batch, heads, positions, width]`, with numbers that are added to scores.
type Attention = fn([&Expr; 3], &Expr) -> Expr;

fn weights(q: &Expr, transposed_k: &Expr, mask: &Expr) -> Expr {
    (q.matmul(transposed_k) + mask).softmax(-1)
}

/// As PyTorch's exporter does for queries that see no key.
fn without_nan(x: &Expr) -> Expr {
    let zero = FillConstant { dtype: x.dtype(), shape: vec![1], ..FillConstant::of(New) };
    let zero = x.builder().emit(zero).out;
    let zeros = ExpandAsV2 { x: (&zero).into(), y: Some(x.into()), out: New, target_shape: vec![] };
    x.isnan().where_cond(&emit(zeros).out, x)
}

const ATTENTION: &[Attention] = &[
    |[q, k, v], mask| without_nan(&weights(&(q * 0.7), &(k.transpose(&[0, 1, 3, 2]) * 0.7), mask)).matmul(v),
    |[q, k, v], mask| {
        let [q, k, v] = [q, k, v].map(|x| x.transpose(&[0, 2, 1, 3]).transpose(&[0, 2, 1, 3]));
        without_nan(&weights(&q, &k.transpose(&[0, 1, 3, 2]), mask)).matmul(&v).transpose(&[0, 2, 1, 3])
    },
    |[q, k, v], _| (q.matmul(&k.transpose(&[0, 1, 3, 2])) / 2.0).softmax(-1).matmul(v),
    |[q, k, v], _| {
        let scores = emit(MatmulV2 { x: q.into(), y: k.into(), out: New, trans_x: false, trans_y: true }).out;
        scores.softmax(3).matmul(v)
    },
    // Numbers so negative that they hide keys.
    |[q, k, v], mask| {
        let mask = mask.isinf().cast(q.dtype()) * -1e30;
        (mask + q.matmul(&k.transpose(&[0, 1, 3, 2])) * 0.5).softmax(-1).matmul(v)
    },
];

/// A program with attention, its feeds, and the names of the result.
fn attention_inputs(net: &Builder) -> ([Expr; 3], Expr) {
    let input = |name: &str, dims: &[i64]| net.input(name, DType::F64, dims);
    let [q, k, v] = [("q", [-1, 3, -1, 4]), ("k", [-1, 3, -1, 4]), ("v", [-1, 3, -1, 5])]
        .map(|(name, dims)| input(name, &dims));
    ([q, k, v], input("mask", &[-1, 1, -1, -1]))
}

#[test]
fn products_of_batches_that_may_differ_stay() -> Result<()> {
    let (unknown, one) = (Dim::UNKNOWN, Dim::from(1));
    let named = [Dim::named("queries"), Dim::named("keys")];
    for ([queries, keys], is_attention) in [
        ([unknown, unknown], true),
        ([unknown, one], false),
        ([one, one], true),
        (named, false),
        ([named[0]; 2], true),
    ] {
        let net = Builder::new();
        let input = |name: &str, batch: Dim, width: usize| {
            net.input_with_dims(name, DType::F64, vec![batch, 3.into(), unknown, width.into()])
        };
        let (q, k, v) = (input("q", queries, 4), input("k", keys, 4), input("v", keys, 5));
        let (_, after) = recognised(&q.matmul(&k.transpose(&[0, 1, 3, 2])).softmax(-1).matmul(&v))?;
        let found = after.root().ops.iter().any(|op| &*op.ty == "scaled_dot_product_attention");
        assert_eq!(found, is_attention, "{queries} and {keys}");
    }
    Ok(())
}

#[test]
fn every_form_of_attention_is_recognised() -> Result<()> {
    for form in ATTENTION {
        let net = Builder::new();
        let ([q, k, v], mask) = attention_inputs(&net);
        let (before, after) = recognised(&form([&q, &k, &v], &mask))?;
        let y = before.root().ops.last().and_then(|op| op.outputs.get("Out").first()).copied();
        let y = y.map(|y| before.name(y).to_string()).unwrap_or_default();
        let types: Vec<&str> = after.root().ops.iter().map(|op| &*op.ty).collect();
        assert!(types.contains(&"scaled_dot_product_attention") && !types.contains(&"softmax"), "{after}");
        let tensor = |dims: [usize; 4]| {
            let numbers = (0..dims.iter().product()).map(|i| (i * 7 % 23) as f64 / 11.0 - 1.0);
            Tensor::from_vec(dims, numbers.collect::<Vec<_>>())
        };
        let (q, k, v) = (tensor([2, 3, 4, 4])?, tensor([2, 3, 6, 4])?, tensor([2, 3, 6, 5])?);
        // A query sees no key, the others see some.
        let hidden = |i: usize| if i % 24 < 6 || i.is_multiple_of(5) { f64::NEG_INFINITY } else { 0.0 };
        let mask = Tensor::from_vec([2, 1, 4, 6], (0..48).map(hidden).collect::<Vec<_>>())?;
        let feeds: [(&str, &dyn Feed); 4] = [("q", &q), ("k", &k), ("v", &v), ("mask", &mask)];
        let feeds = if before.root().ops.iter().any(|op| op.reads().any(|var| before.name(var) == "mask")) {
            &feeds[..]
        } else {
            &feeds[..3]
        };
        let (written, found) = (values(before.clone(), &y, feeds)?, values(after, &y, feeds)?);
        assert_near(&found[0], &written[0], 1e-12);
    }
    Ok(())
}

/// What looks like a known function and is another one.
const OTHERS: &[Normalisation] = &[
    |x, _, _| x * &((x / 1.4).erf() + 1.0) * 0.5,
    |x, _, _| x * 0.5 * ((x * 0.797_884_56 * (x.square() * 0.0447 + 1.0)).tanh() + 1.0),
    |x, w, _| x * &w.sigmoid(),
    |x, _, _| x * &(x * 1.7).sigmoid(),
    // A deviation with the term outside the root.
    |x, w, b| {
        let centred = x - &mean(x);
        &centred / &(mean(&centred.square()).sqrt() + 1e-3) * w + b
    },
    // The variance of a sample.
    |x, w, b| {
        let centred = x - &mean(x);
        &centred / &(mean(&centred.square()) * 1.25 + 1e-5).sqrt() * w + b
    },
    // Other dimensions.
    |x, _, _| {
        let mean = |x: &Expr| x.mean_keepdim(&[0, 2]);
        let centred = x - &mean(x);
        &centred / &(mean(&centred.square()) + 1e-6).sqrt()
    },
    // Another dtype.
    |x, _, _| x * &x.sigmoid().cast(DType::F64).cast(DType::F32),
    |x, w, _| x * &(x.square().mean_keepdim(&[1]) + 1e-6).rsqrt() * w,
    // Without weights, there is no such operator.
    |x, _, _| x * &(mean(&x.square()) + 1e-6).rsqrt(),
];

#[test]
fn other_functions_stay() -> Result<()> {
    for form in OTHERS {
        let net = Builder::new();
        let [x, w, b] = [("x", &[-1, -1, 5][..]), ("w", &[5]), ("b", &[5])]
            .map(|(name, dims)| net.input(name, DType::F32, dims));
        let (before, after) = recognised(&form(&x, &w, &b))?;
        assert_eq!(before, after);
    }
    Ok(())
}

#[test]
fn values_that_are_read_elsewhere_stay() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1]);
    let inner = (&x / 2.0_f64.sqrt()).erf();
    let y = &x * &(&inner + 1.0) * 0.5;
    let program = (*net.program()?).clone();
    for kept in [&inner, &y] {
        let (mut after, kept) = (program.clone(), program.expect_var(&kept.name())?);
        let is_read = after.expect_var(&y.name())?;
        let count = recognise(&mut after, |var| var == kept || var == is_read)?;
        assert_eq!(count, usize::from(kept == is_read));
    }
    let _another_reader = inner.square();
    assert_eq!(recognise(&mut (*net.program()?).clone(), |_| false)?, 0);
    Ok(())
}

#[test]
fn the_end_of_a_gradient_stays() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[3, 3]);
    for y in [&x * &x.sigmoid().detach(), x.matmul(&x.transpose(&[1, 0]).detach())] {
        let (before, after) = recognised(&y)?;
        assert_eq!(before, after);
    }
    Ok(())
}

#[test]
fn values_that_change_meanwhile_are_read_before() -> Result<()> {
    let net = Builder::new();
    let x = net.persistable("x", DType::F32, &[4], Expr::clone);
    let gate = x.sigmoid();
    let y = &x * &gate;
    let mut program = (*net.program()?).clone();
    let [gate, x, y] = [gate, x, y].map(|value| program.var(&value.name()));
    assert_eq!(recognise(&mut program.clone(), |var| var == y)?, 1);
    program.root_mut().ops.insert(1, OpDesc::new("assign").input("X", [gate]).output("Out", [x]));
    assert_eq!(recognise(&mut program, |var| var == y)?, 0);
    Ok(())
}
