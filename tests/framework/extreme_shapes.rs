//! Empty shapes, and shapes too large for memory.

use autobwd::{Backward, Builder, DType, Executor, Expr, Feed, Meta, Result, Scope, Tensor, append_backward};
use autobwd_ops::Math;

const HUGE: usize = 1 << 40;

#[test]
fn overflowing_shapes_are_refused_even_without_elements() -> Result<()> {
    for dims in [[usize::MAX, 2, 0], [0, usize::MAX, 2], [HUGE, HUGE, 0], [HUGE, 0, HUGE], [HUGE, HUGE, 1]] {
        for dtype in DType::ALL {
            let e = Tensor::zeros(dtype, &dims).unwrap_err();
            assert!(e.message().ends_with(" exceeds the address space"), "{e}");
        }
        assert!(Tensor::from_vec(dims, Vec::<f32>::new()).is_err());
        assert_eq!(Meta::new(DType::F32, dims).bytes(), None);
    }
    // Empty tensors print, save and have views.
    let long = Tensor::zeros(DType::F32, &[HUGE, 0, 3])?;
    assert_eq!(
        (long.numel(), long.view::<f32, autobwd::ndarray::IxDyn>()?.len(), long.dims()),
        (0, 0, &[HUGE, 0, 3][..])
    );
    assert!(format!("{long:?}").starts_with("float32 [[["));
    let path = std::env::temp_dir().join(format!("autobwd-sizes-{}.safetensors", std::process::id()));
    let mut scope = Scope::new();
    scope.set("long", long);
    scope.save(&path)?;
    let mut loaded = Scope::new();
    let outcome = loaded.load(&path);
    std::fs::remove_file(&path).unwrap();
    outcome?;
    assert_eq!(loaded.get("long")?, scope.get("long")?);
    Ok(())
}

#[test]
fn programs_of_shapes_that_no_memory_holds_are_refused() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F32, &[-1, 1]), net.input("y", DType::F32, &[1, -1]));
    let all = (0..40).map(|i| (&x + &y + f64::from(i)).cumsum(0)).collect::<Vec<Expr>>();
    let sum = all[1..].iter().fold(all[0].clone(), |sum, z| &sum + z).name();
    let prepare = |rows: usize, columns: usize| {
        let feeds = [("x", Meta::new(DType::F32, [rows, 1])), ("y", Meta::new(DType::F32, [1, columns]))];
        let (executor, mut scope) = (Executor::with_threads(1), Scope::new());
        let plan = executor.plan(&net.program()?, &scope, &feeds, &[&sum]).map(|plan| plan.to_svg().len());
        let session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&sum]).map(|s| s.arena_bytes());
        let text = |e: &autobwd::Error| e.to_string();
        assert!(plan.as_ref().err().is_none_or(|e| session.as_ref().err().map(text) == Some(text(e))));
        session
    };
    let e = prepare(1 << 30, 1 << 29).unwrap_err();
    assert!(
        e.message().starts_with("the values of the program take more memory than can be addressed"),
        "{e}"
    );
    let e = prepare(HUGE, HUGE).unwrap_err();
    assert!(e.message().contains("is unknown or too large"), "{e}");
    assert!(prepare(1 << 20, 0)? > 1 << 20);
    let unknown = [("x", Meta::new(DType::F32, autobwd::Dims::from_wire(&[-1, 1])?))];
    let e = Executor::new().plan(&net.program()?, &Scope::new(), &unknown, &[&sum]).err().unwrap();
    assert_eq!(e.message(), "`x` cannot be fed: its shape [-1, 1] is unknown or too large");
    Ok(())
}

/// Empty sums, with shape `[0, 3]` of their terms.
fn sums(x: &Expr) -> Vec<Expr> {
    let flat = x.reshape(&[-1]);
    vec![
        x.sum(&[]),
        x.sum(&[0]),
        flat.sum(&[0]),
        flat.sum(&[]),
        x.transpose(&[1, 0]).matmul(x),
        flat.matmul(&flat),
        x.tanh().sum(&[]),
        x.tanh().sum(&[0]),
        (x * 2.0).square().sum(&[1, 0]),
    ]
}

#[test]
fn sum_of_nothing_is_positive_zero() -> Result<()> {
    let nothing = |dtype| Tensor::zeros(dtype, &[0, 3]);
    let is_zero = |x: &Tensor| x.to_f64s().iter().all(|x| x.to_bits() == 0);
    for dtype in [DType::F32, DType::F64] {
        let tape = autobwd::eager();
        let x = tape.constant(nothing(dtype)?);
        for (i, sum) in sums(&x).iter().enumerate() {
            assert!(is_zero(&sum.tensor()?), "sum {i}: {sum}");
        }
        assert!(x.mean().item()?.is_nan() && x.mean_over(&[0]).tensor()?.to_f64s()[0].is_nan());
        assert_eq!(x.prod(&[]).item()?, 1.0);
        for threads in [1, 3] {
            let net = Builder::new();
            let x = net.input("x", dtype, &[-1, 3]);
            let names: Vec<String> = sums(&x).iter().map(Expr::name).collect();
            let fetches: Vec<&str> = names.iter().map(String::as_str).collect();
            let feeds: [(&str, &dyn Feed); 1] = [("x", &nothing(dtype)?)];
            let found =
                Executor::with_threads(threads).run(&net.program()?, &mut Scope::new(), &feeds, &fetches)?;
            for (name, sum) in names.iter().zip(&found) {
                assert!(is_zero(sum), "{name}: {sum:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_of_a_batch_of_nothing_are_positive_zero() -> Result<()> {
    let net = Builder::new();
    let parameter = |name: &str, dims: &[usize]| net.parameter(name, DType::F32, dims, Expr::clone);
    let (w, b, scale) = (parameter("w", &[3, 4]), parameter("b", &[4]), parameter("scale", &[4]));
    let x = net.input("x", DType::F32, &[-1, 3]);
    let h = (x.matmul(&w) + &b).tanh() * &scale;
    let loss = (h.softmax(-1).log().square().sum(&[]) + h.prod(&[0]).sum(&[])).name();
    let program = &mut net.program()?.clone();
    let found = append_backward(program, &loss, &Backward::default())?.entries();
    let names: Vec<&str> = found.iter().map(|var| program.name(var.unwrap())).collect();
    let mut scope = Scope::new();
    for (name, dims) in [("w", &[3, 4][..]), ("b", &[4]), ("scale", &[4])] {
        scope.set(name, Tensor::from_vec(dims, vec![-1.5_f32; dims.iter().product()])?);
    }
    let feeds: [(&str, &dyn Feed); 1] = [("x", &Tensor::zeros(DType::F32, &[0, 3])?)];
    for gradient in Executor::new().run(program, &mut scope, &feeds, &names)? {
        assert!(gradient.to_f64s().iter().all(|x| x.to_bits() == 0), "{gradient:?}");
    }
    Ok(())
}

#[test]
fn rows_that_do_not_count_are_no_part_of_the_mean() -> Result<()> {
    let labels = |labels: &[i64]| Tensor::from_vec([labels.len(), 1], labels.to_vec());
    let logits = || Tensor::from_vec([3, 2], vec![1.0_f32, 2.0, 0.5, 0.5, 3.0, -1.0]);
    let both =
        |x: &Expr, y: &Expr| Ok::<_, autobwd::Error>([x.mean_cross_entropy(y), x.cross_entropy(y).mean()]);
    let tape = autobwd::eager();
    let x = tape.leaf("x", logits()?);
    let [mean, plain] = both(&x, &tape.constant(labels(&[1, -100, 0])?))?;
    let expected = ((1.0 + (-1.0_f64).exp()).ln() + (1.0 + (-4.0_f64).exp()).ln()) / 2.0;
    assert!((mean.item()? - expected).abs() < 1e-7, "{mean:?}");
    assert!((plain.item()? - expected * 2.0 / 3.0).abs() < 1e-7);
    mean.backward()?;
    let eager = x.gradient()?.tensor()?;
    assert_eq!(eager.to_f64s()[2..4], [0.0, 0.0]);
    assert!(both(&x, &tape.constant(labels(&[-100; 3])?))?[0].item()?.is_nan());

    let net = Builder::new();
    let x = net.parameter("x", DType::F32, &[3, 2], Expr::clone);
    let [loss, _] = both(&x, &net.input("y", DType::I32, &[-1, 1]))?;
    let program = &mut net.program()?.clone();
    let found = append_backward(program, &loss.name(), &Backward::default())?.entries()[0].unwrap();
    let mut scope = Scope::new();
    scope.set("x", logits()?);
    let y = Tensor::from_vec([3, 1], vec![1_i32, -100, 0])?;
    let gradient = Executor::new().run(program, &mut scope, &[("y", &y)], &[program.name(found)])?;
    assert_eq!(gradient[0], eager);
    Ok(())
}
