//! Tensors of float16 and bfloat16: storage in 16 bits, arithmetic in float32.

use autobwd::{
    Builder, DType, ErrorKind, Executor, Expr, Feed, Program, Result, Scope, Tensor, append_backward, eager,
    exec::Predictor,
    ndarray::{Array, Ix2},
    tensor::{bf16, f16, load_tensors, save_tensors},
};
use autobwd_ops::{
    Init, Math,
    control::while_loop,
    nn::{CrossEntropyLoss, Embedding, Linear},
    optim::{Momentum, Optimizer, Sgd},
};

const HALVES: [DType; 2] = [DType::F16, DType::BF16];

/// Numbers with many digits.
fn numbers(count: usize) -> Vec<f64> {
    (0..count).map(|i| ((i * 37 % 101) as f64 / 31.0 - 1.5) * 1.017).collect()
}

fn run(net: &Builder, feeds: &[(&str, &Tensor)], fetches: &[&Expr], check: bool) -> Result<Vec<Tensor>> {
    let feeds: Vec<(&str, &dyn Feed)> = feeds.iter().map(|(name, x)| (*name, *x as &dyn Feed)).collect();
    let names: Vec<String> = fetches.iter().map(|x| x.name()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Executor::with_threads(1).check_finite(check).run(&net.program()?, &mut Scope::new(), &feeds, &names)
}

#[test]
fn numbers_are_converted_in_both_directions() -> Result<()> {
    let x =
        Tensor::from_f64s(DType::F64, [4], &[1.0 + 2_f64.powi(-8) + 2_f64.powi(-40), 1e6, -1e-9, f64::NAN])?;
    for (dtype, expected) in [
        (DType::F16, [1.00390625, f64::INFINITY, -0.0]),
        // 1 + 2⁻⁸ alone is halfway between two numbers.
        (DType::BF16, [1.0078125, 999424.0, -9.968061931431293e-10]),
    ] {
        let net = Builder::new();
        let input = net.input("x", DType::F64, &[4]);
        let half = input.cast(dtype);
        let back = (&half.cast(DType::F64) * 1.0).cast(DType::F64);
        {
            let [half, back] = &run(&net, &[("x", &x)], &[&half, &back], false)?[..] else { unreachable!() };
            assert_eq!(half.dtype(), dtype);
            for (found, expected) in half.to_f64s().iter().zip(expected) {
                assert_eq!(found.to_bits(), expected.to_bits(), "{dtype} {found:e}");
            }
            assert!(half.to_f64s()[3].is_nan() && back.to_f64s()[3].is_nan());
            assert_eq!(half.to_f64s()[..3], back.to_f64s()[..3]);
        }
    }
    Ok(())
}

/// Fused operators round where they would store: results equal the results of operators that run alone.
#[test]
fn fusion_changes_no_bit() -> Result<()> {
    for dtype in HALVES {
        let net = Builder::new();
        let (x, y) = (net.input("x", dtype, &[50, 70]), net.input("y", dtype, &[70]));
        let h = ((&x * 1.013 + &y).tanh() * 0.977 + 0.119).exp();
        let single = (h.cast(DType::F32) * 1.01).cast(dtype);
        let mask = h.greater_than(&single);
        let mixed = mask.where_cond(&h, &(&single * 3.0));
        let outs = [&mixed, &mixed.sum(&[1]), &mixed.mean(), &(&mixed * &mixed).sum(&[0])];
        let tensors = [(3500, vec![50, 70]), (70, vec![70])]
            .map(|(n, dims)| Tensor::from_f64s(dtype, dims, &numbers(n)).unwrap());
        let feeds = [("x", &tensors[0]), ("y", &tensors[1])];
        let (fused, alone) = (run(&net, &feeds, &outs, false)?, run(&net, &feeds, &outs, true)?);
        assert_eq!(fused, alone, "{dtype}");
        assert!(fused.iter().all(|x| x.dtype() == dtype));
    }
    Ok(())
}

#[test]
fn elementwise_operators_of_16_bits_are_one_kernel() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::BF16, &[1000]);
    let y = (&x * 2.0 + 1.0).tanh().cast(DType::F32).exp();
    let program = net.program()?.clone();
    let feeds = [("x", autobwd::Meta::new(DType::BF16, [1000]))];
    let session = Executor::new().prepare(&program, &mut Scope::new(), &feeds, &[&y.name()])?;
    assert_eq!(session.instruction_count(), 1);
    Ok(())
}

/// A kernel computes in float32 on the same numbers, and rounds once.
#[test]
fn kernels_compute_in_single_precision() -> Result<()> {
    for dtype in HALVES {
        let x = Tensor::from_f64s(dtype, [3, 40], &numbers(120))?;
        let w = Tensor::from_f64s(dtype, [40, 5], &numbers(200))?;
        let wide = |x: &Tensor| Tensor::from_f64s(DType::F32, x.dims(), &x.to_f64s());
        let results = |x: Tensor, w: Tensor| -> Result<[Tensor; 3]> {
            let tape = eager();
            let (x, w) = (tape.constant(x), tape.constant(w));
            Ok([x.matmul(&w).tensor()?, x.softmax(-1).tensor()?, x.logsumexp(&[1]).tensor()?])
        };
        let (half, single) = (results(x.clone(), w.clone())?, results(wide(&x)?, wide(&w)?)?);
        for (half, single) in half.iter().zip(single) {
            assert_eq!(*half, Tensor::from_f64s(dtype, single.dims(), &single.to_f64s())?);
        }
    }
    Ok(())
}

/// Logits of 16-bit factors are computed a tile at a time and are not rounded.
#[test]
fn losses_of_linear_layers_are_single_precision() -> Result<()> {
    let loss_of = |rounded: DType, dtype: DType| -> Result<[Tensor; 2]> {
        let tape = eager();
        let tensor = |dims: &[usize]| {
            let x = Tensor::from_f64s(rounded, dims, &numbers(dims.iter().product()))?;
            Tensor::from_f64s(dtype, dims, &x.to_f64s())
        };
        let x = tape.leaf("x", tensor(&[3, 40])?);
        let [weight, bias, class_weights] =
            [tensor(&[5, 40])?, tensor(&[5])?, tensor(&[5])?].map(|x| tape.constant(x));
        let layer = Linear { weight, bias: Some(bias), is_transposed: true };
        let labels = tape.constant(Tensor::from_vec([3], vec![4_i64, -100, 0])?);
        let loss = CrossEntropyLoss::new().class_weights(&class_weights).label_smoothing(0.1);
        let loss = loss.of_linear(&x, &layer, &labels);
        loss.backward()?;
        Ok([loss.tensor()?, x.gradient()?.tensor()?])
    };
    for dtype in HALVES {
        let ([loss, dx], [expected, single]) = (loss_of(dtype, dtype)?, loss_of(dtype, DType::F32)?);
        assert_eq!((loss.dtype(), &loss), (DType::F32, &expected));
        assert_eq!(dx, Tensor::from_f64s(dtype, single.dims(), &single.to_f64s())?);
    }
    Ok(())
}

/// Parameters, gradients and state of 16 bits, as a program and in eager mode.
#[test]
fn training_runs_in_16_bits() -> Result<()> {
    for dtype in HALVES {
        for momentum in [false, true] {
            let net = Builder::new();
            let w = net.parameter("w", dtype, &[4, 1], |w| Init::Uniform(-1.0, 1.0).emit(w, 3));
            let (x, y) = (net.input("x", dtype, &[-1, 4]), net.input("y", dtype, &[-1, 1]));
            let loss = (x.matmul(&w) - &y).square().mean();
            match momentum {
                true => Momentum { rate: 0.02, momentum: 0.5, nesterov: false, lazy: false }
                    .minimize(&loss)?
                    .complete()?,
                false => Sgd { rate: 0.05 }.minimize(&loss)?.complete()?,
            };
            let mut scope = Scope::new();
            let mut executor = Executor::with_threads(1);
            executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
            let x = Tensor::from_f64s(dtype, [8, 4], &numbers(32))?;
            let y = Tensor::from_f64s(dtype, [8, 1], &numbers(8))?;
            let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("y", &y)];
            let program = net.program()?.clone();
            let mut losses = vec![];
            for _ in 0..60 {
                losses.push(executor.run(&program, &mut scope, &feeds, &[&loss.name()])?[0].item()?);
            }
            assert!(
                losses[59] < 0.8 * losses[0] && losses.iter().all(|x| x.is_finite()),
                "{dtype} {losses:?}"
            );
            assert_eq!(scope.get("w")?.dtype(), dtype);
        }
    }
    Ok(())
}

#[test]
fn eager_gradients_have_the_dtype_of_their_inputs() -> Result<()> {
    for dtype in HALVES {
        let tape = eager();
        let x = tape.leaf("x", Tensor::from_f64s(dtype, [2, 3], &numbers(6))?);
        x.tanh().matmul(&x.transpose(&[1, 0])).mean().backward()?;
        let gradient = x.gradient()?;
        assert_eq!((gradient.dtype(), &gradient.dims()[..]), (dtype, &x.dims()[..]));
        assert!(gradient.tensor()?.to_f64s().iter().all(|x| x.is_finite() && *x != 0.0));
    }
    Ok(())
}

/// A sum over steps is made in float32: small terms do not vanish.
#[test]
fn gradients_of_loops_are_summed_in_single_precision() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::BF16, &[1], |w| Init::Constant(1.0).emit(w, 0));
    let steps = net.input("steps", DType::F32, &[]);
    let zero = net.input("zero", DType::BF16, &[1]);
    let count = net.input("count", DType::F32, &[]);
    let states = [count, zero];
    let last = while_loop(&states, |v| v[0].less_than(&steps), |v| vec![&v[0] + 1.0, &v[1] * 0.0 + &w]);
    let loss = last[1].mean();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Default::default())?;
    let mut scope = Scope::new();
    let mut executor = Executor::with_threads(1);
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (count, steps) = (Tensor::scalar(0.0_f32)?, Tensor::scalar(3.0_f32)?);
    let zero = Tensor::from_f64s(DType::BF16, [1], &[0.0])?;
    let feeds: [(&str, &dyn Feed); 3] = [("steps", &steps), ("zero", &zero), ("count", &count)];
    let found = executor.run(&program, &mut scope, &feeds, &["w@GRAD"])?;
    assert_eq!((found[0].dtype(), found[0].to_f64s()), (DType::BF16, vec![1.0]));
    Ok(())
}

#[test]
fn sparse_gradients_of_a_table_have_16_bits() -> Result<()> {
    let mut tables = vec![];
    for sparse in [false, true] {
        let net = Builder::new();
        let table = Embedding::builder(&net, 10, 3).dtype(DType::BF16);
        let loss = if sparse { table.sparse().build() } else { table.build() }
            .forward(&net.input("ids", DType::I64, &[4]))
            .square()
            .mean();
        Sgd { rate: 0.5 }.minimize(&loss)?.complete()?;
        let mut scope = Scope::new();
        let mut executor = Executor::with_threads(1);
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let ids = Tensor::from_vec([4], vec![1_i64, 7, 1, 3])?;
        executor.run(&net.program()?, &mut scope, &[("ids", &ids)], &[])?;
        let program = net.program()?;
        let name = program.parameters().next().map(|var| program.name(var).to_string()).unwrap_or_default();
        tables.push(scope.get(&name)?.clone());
    }
    assert_eq!(tables[0], tables[1]);
    assert_eq!(tables[0].dtype(), DType::BF16);
    Ok(())
}

#[test]
fn operands_of_two_dtypes_are_refused() {
    let net = Builder::new();
    let sum = net.input("x", DType::BF16, &[2]) + net.input("y", DType::F32, &[2]);
    let e = sum.check().unwrap_err().to_string();
    assert!(e.contains("dtype float32 does not match bfloat16"), "{e}");
}

#[test]
fn overflow_is_infinite_and_found() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[1]);
    let half = x.cast(DType::F16);
    let large = Tensor::from_vec([1], vec![1e5_f32])?;
    assert_eq!(run(&net, &[("x", &large)], &[&half], false)?[0].to_f64s(), [f64::INFINITY]);
    let e = run(&net, &[("x", &large)], &[&half], true).unwrap_err();
    assert!(e.kind() == ErrorKind::NotFinite && e.to_string().contains("float16 [1], 1 infinite"), "{e}");
    Ok(())
}

#[test]
fn files_hold_16_bits() -> Result<()> {
    let tensors = HALVES.map(|dtype| Tensor::from_f64s(dtype, [2, 3], &numbers(6)).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (saved, arrays) = (folder.path().join("x.safetensors"), folder.path().join("x.npz"));
    let named = [("bf16", &tensors[1]), ("f16", &tensors[0])];
    save_tensors(&saved, named)?;
    let back = load_tensors(&saved)?;
    assert!(back.iter().map(|(name, x)| (name.as_str(), x)).eq(named));
    autobwd_data::save_npz(&arrays, named)?;
    let back = autobwd_data::load_npz(&arrays)?;
    assert!(back.iter().map(|(name, x)| (name.as_str(), x)).eq(named));

    let net = Builder::new();
    _ = net.input("x", DType::BF16, &[2]).cast(DType::F16).tanh();
    let program = net.program()?.clone();
    assert_eq!(Program::from_json(&program.to_json())?.to_string(), program.to_string());
    assert!(program.to_string().contains("float16"));
    Ok(())
}

#[test]
fn arrays_of_half_are_tensors_and_feeds() -> Result<()> {
    let array = Array::from_shape_vec((1, 2), vec![f16::ONE, f16::from_f32(0.5)]).unwrap();
    let net = Builder::new();
    let y = net.input("x", DType::F16, &[-1, 2]) * 2.0;
    let fetched = Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &array)], &[&y.name()])?;
    assert_eq!(fetched[0].clone().into_array::<f16, Ix2>()?.sum(), f16::from_f32(3.0));
    assert!(format!("{:?}", Tensor::try_from(array)?).starts_with("float16 [[1.0, 0.5]], shape=[1, 2]"));
    assert_eq!(Tensor::scalar(bf16::from_f32(1.5))?.item()?, 1.5);
    Ok(())
}

#[test]
fn predictor_runs_a_model_of_16_bits() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::BF16, &[3, 2], |w| Init::Uniform(-1.0, 1.0).emit(w, 1));
    let y = net.input("x", DType::BF16, &[-1, 3]).matmul(&w).softmax(-1);
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    let mut predictor = Predictor::new(&net.program()?.clone(), scope, &[&y.name()])?;
    let x = Tensor::from_f64s(DType::BF16, [1, 3], &numbers(3))?;
    let scores = predictor.predict(&[("x", &x)])?;
    assert_eq!(scores[0].dtype(), DType::BF16);
    Ok(())
}
