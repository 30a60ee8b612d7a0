//! Number literals in expressions, and integers: exact, or an error.

use autobwd::{
    Attr, Builder, DType, ErrorKind, Executor, Expr, Feed, Program, Result, Scope, Tensor, gradients,
    tensor::Element,
};
use autobwd_ops::{Init, Math, activation::Scale};

use crate::support::programs::differentiable;

/// The values of a formula of one variable, from eager mode and from a program.
fn both<X: Element, Y: Element>(x: &[X], f: impl Fn(&Expr) -> Expr) -> Result<Vec<Y>> {
    let x = Tensor::from_vec([x.len()], x.to_vec())?;
    let tape = autobwd::eager();
    let eager = f(&tape.constant(x.clone())).tensor()?;
    let net = Builder::new();
    let out = f(&net.input("x", X::DTYPE, &[-1])).name();
    let program = Program::from_json(&net.program()?.to_json())?;
    assert_eq!(program, *net.program()?);
    let run = Executor::with_threads(1).run(&program, &mut Scope::new(), &[("x", &x)], &[&out])?;
    assert_eq!(eager, run[0]);
    Ok(eager.slice::<Y>()?.to_vec())
}

/// The errors of a formula, in eager mode and in a program.
fn refused(dtype: DType, f: impl Fn(&Expr) -> Expr) -> [String; 2] {
    let tape = autobwd::eager();
    let eager = f(&tape.constant(Tensor::zeros(dtype, &[2]).unwrap())).check().unwrap_err();
    let net = Builder::new();
    let described = f(&net.input("x", dtype, &[-1])).check().unwrap_err();
    assert_eq!(eager.kind(), described.kind());
    [eager.to_string(), described.to_string()]
}

#[test]
fn literals_with_float64_are_exact() -> Result<()> {
    let x = [1.0, -2.5, 1e-300];
    let f64s = |f: &dyn Fn(&Expr) -> Expr| both::<f64, f64>(&x, f);
    assert_eq!(f64s(&|x| x * 0.1)?, x.map(|x| x * 0.1));
    assert_eq!(f64s(&|x| 0.1 * x)?, x.map(|x| x * 0.1));
    assert_eq!(f64s(&|x| x - 0.3)?, x.map(|x| x - 0.3));
    assert_eq!(f64s(&|x| 0.3 - x)?, x.map(|x| 0.3 - x));
    assert_eq!(f64s(&|x| x + 16777217.0)?, x.map(|x| x + 16777217.0));
    assert_eq!(f64s(&|x| x * 1e300)?, x.map(|x| x * 1e300));
    assert_eq!(f64s(&|x| x / 0.3)?, x.map(|x| x * (1.0 / 0.3)));
    assert_eq!(f64s(&|x| x / 1e-310)?, x.map(|x| x / 1e-310));
    assert_eq!(f64s(&|x| 0.3 / x)?, x.map(|x| 0.3 / x));
    assert_eq!(f64s(&|x| x.clip(-0.1, 0.3))?, x.map(|x| x.clamp(-0.1, 0.3)));
    assert_eq!(f64s(&|x| x.leaky_relu(0.1))?, x.map(|x| if x > 0.0 { x } else { 0.1 * x }));
    assert_eq!(f64s(&|x| x.elu(0.1))?[0], 1.0);
    Ok(())
}

#[test]
fn literals_with_float32_have_its_precision() -> Result<()> {
    let x = [1.0_f32, -2.5];
    assert_eq!(both::<f32, f32>(&x, |x| x * 0.1)?, x.map(|x| x * 0.1));
    assert_eq!(both::<f32, f32>(&x, |x| x.clip(-0.1, 0.3))?, x.map(|x| x.clamp(-0.1, 0.3)));
    let net = Builder::new();
    (net.input("x", DType::F32, &[1]) * 0.1).check()?;
    let scale = net.program()?.root().ops[0].attrs.get("scale").cloned();
    assert_eq!(scale, Some(Attr::F32(0.1)), "as files of the reference have it");
    Ok(())
}

#[test]
fn attributes_of_either_precision_keep_their_value() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[1]);
    let (ours, theirs) = (&x * 0.1, &x * f64::from(0.1_f32));
    let attrs: Vec<_> = net.program()?.root().ops.iter().map(|op| op.attrs.get("scale").cloned()).collect();
    assert_eq!(attrs, [Some(Attr::F64(0.1)), Some(Attr::F32(0.1))]);
    let text = net.program()?.to_string();
    assert!(text.contains("scale=0.1f64") && text.contains("scale=0.1)"), "{text}");

    let json = net.program()?.to_json();
    assert!(
        json.contains(r#"{"float64":0.1}"#) && json.contains(r#"{"float":0.10000000149011612}"#),
        "{json}"
    );
    let again = Program::from_json(&json)?;
    assert_eq!(again, *net.program()?);
    let one = Tensor::from_vec([1], vec![1.0])?;
    let names = [ours.name(), theirs.name()];
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let found = Executor::with_threads(1).run(&again, &mut Scope::new(), &[("x", &one)], &names)?;
    assert_eq!(found[0].to_f64s(), [0.1]);
    assert_eq!(found[1].to_f64s(), [f64::from(0.1_f32)]);
    Ok(())
}

#[test]
fn gradients_use_the_exact_number() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[1]);
    differentiable(&net, &x);
    let y = &x * 0.1 * 0.3;
    let mut program = net.program()?.clone();
    let built = gradients(&mut program, &[&y.name()], &["x"], &Default::default())?;
    let dx = built.of(x.var()).map(|dx| program.name(dx).to_string()).unwrap();
    let one = Tensor::from_vec([1], vec![1.0])?;
    let found = Executor::with_threads(1).run(&program, &mut Scope::new(), &[("x", &one)], &[&dx])?;
    assert_eq!(found[0].to_f64s(), [0.3 * 0.1]);

    let tape = autobwd::eager();
    let x = tape.leaf("x", Tensor::from_vec([1], vec![1.0_f64])?);
    (&x * 0.1).backward()?;
    assert_eq!(x.gradient()?.item()?, 0.1);
    Ok(())
}

#[test]
fn first_values_are_exact() -> Result<()> {
    let net = autobwd::eager();
    for dtype in [DType::F32, DType::F64] {
        let w = net.parameter(dtype.name(), dtype, &[1], |w| Init::Constant(0.1).emit(w, 0));
        let expected = if dtype == DType::F32 { f64::from(0.1_f32) } else { 0.1 };
        assert_eq!(w.item()?, expected);
        let name = format!("u{dtype}");
        let u = net.parameter(&name, dtype, &[1], |w| Init::Uniform(0.1, 0.1).emit(w, 0));
        assert_eq!(u.item()?, expected);
    }
    let net = Builder::new();
    let init = |w: &Expr| Init::Constant(0.5).emit(w, 0);
    let e = net.persistable("n", DType::I64, &[1], init).check().unwrap_err();
    assert!(e.to_string().contains("attribute `value`: 0.5 is not representable in int64"), "{e}");
    Ok(())
}

#[test]
fn integers_take_integers_to_the_last_bit() -> Result<()> {
    let x = [10_i64, -100, i64::MAX];
    assert_eq!(both::<i64, i64>(&x, |x| x + 16777217.0)?, x.map(|x| x.wrapping_add(16777217)));
    assert_eq!(both::<i64, i64>(&x, |x| 7.0 - x)?, x.map(|x| 7_i64.wrapping_sub(x)));
    assert_eq!(
        both::<i64, i64>(&x, |x| x * -9007199254740993.0)?,
        x.map(|x| x.wrapping_mul(-9007199254740992))
    );
    assert_eq!(both::<i64, i64>(&x, |x| x.clip(-7.0, 1e19))?, x.map(|x| x.max(-7)));
    assert_eq!(both::<i64, i64>(&x, |x| -x)?, x.map(i64::wrapping_neg));
    let x = [7_i32, i32::MIN, i32::MAX];
    assert_eq!(both::<i32, i32>(&x, |x| x * 2.0 + 1.0)?, x.map(|x| x.wrapping_mul(2).wrapping_add(1)));
    Ok(())
}

#[test]
fn integers_refuse_literals_outside_their_dtype() {
    for dtype in [DType::I32, DType::I64] {
        let names = |texts: [String; 2], what: &str| {
            for text in texts {
                assert!(text.contains(what), "{text}");
            }
        };
        let hint =
            format!("is not representable in {dtype}; `cast` the input to a floating point dtype first");
        names(refused(dtype, |x| x * 1.9), &format!("attribute `scale`: 1.9 {hint}"));
        names(refused(dtype, |x| x + 0.5), &format!("attribute `bias`: 0.5 {hint}"));
        names(refused(dtype, |x| x - f64::INFINITY), &format!("attribute `bias`: -inf {hint}"));
        names(
            refused(dtype, |x| x * 9223372036854775808.0),
            &format!("attribute `scale`: 9223372036854776000 {hint}"),
        );
        names(refused(dtype, |x| x.clip(0.5, 2.0)), &format!("attribute `min`: 0.5 {hint}"));
        let fraction = format!("is {dtype}, but division by a number needs a floating");
        names(refused(dtype, |x| x / 2.0), &fraction);
        names(refused(dtype, |x| 2.0 / x), &fraction);
        names(refused(dtype, |x| x / 0.0), "or use `floor_divide`");
        let [eager, _] = refused(dtype, |x| x / 2.0);
        assert!(!eager.contains("``"), "{eager}");
    }
    let [eager, described] = refused(DType::Bool, |x| x * 2.0);
    assert!(eager.contains("signed or floating point numbers are needed, not bool [2]"), "{eager}");
    assert!(described.contains("operator `scale`"), "{described}");
}

/// Two operands that broadcast: eager, by a program, and by a program on four threads.
fn of_two<T: Element>(x: &Tensor, y: &Tensor, f: impl Fn(&Expr, &Expr) -> Expr) -> Result<Vec<T>> {
    let tape = autobwd::eager();
    let eager = f(&tape.constant(x.clone()), &tape.constant(y.clone())).tensor()?;
    let net = Builder::new();
    let unknown = |dims: &[usize]| vec![-1; dims.len()];
    let (a, b) = (net.input("x", T::DTYPE, &unknown(x.dims())), net.input("y", T::DTYPE, &unknown(y.dims())));
    let out = f(&a, &b).name();
    for threads in [1, 4] {
        let feeds: [(&str, &dyn Feed); 2] = [("x", x), ("y", y)];
        let run = Executor::with_threads(threads).run(&net.program()?, &mut Scope::new(), &feeds, &[&out])?;
        assert_eq!(eager, run[0]);
    }
    Ok(eager.slice::<T>()?.to_vec())
}

#[test]
fn integers_are_exact_and_wrap_around() -> Result<()> {
    let (rows, columns) = (301, 499);
    let number = |i: usize| (i as i64).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64);
    let x: Vec<i64> = (0..rows * columns).map(number).collect();
    let y: Vec<i64> = (0..columns).map(|i| number(i + 7) | 1).collect();
    let (tx, ty) = (Tensor::from_vec([rows, columns], x.clone())?, Tensor::from_vec([columns], y.clone())?);
    let expected = |f: fn(i64, i64) -> i64| -> Vec<i64> {
        x.iter().enumerate().map(|(i, x)| f(*x, y[i % columns])).collect()
    };
    assert_eq!(of_two::<i64>(&tx, &ty, |x, y| x + y)?, expected(i64::wrapping_add));
    assert_eq!(of_two::<i64>(&tx, &ty, |x, y| x - y)?, expected(i64::wrapping_sub));
    assert_eq!(of_two::<i64>(&tx, &ty, |x, y| x * y)?, expected(i64::wrapping_mul));
    assert_eq!(of_two::<i64>(&tx, &ty, |x, y| x / y)?, expected(i64::wrapping_div));
    assert_eq!(of_two::<i64>(&tx, &ty, Expr::maximum)?, expected(i64::max));
    assert_eq!(of_two::<i64>(&tx, &ty, Expr::minimum)?, expected(i64::min));
    // A column of another shape, the same tensor twice, one column.
    let column: Vec<i64> = (0..rows).map(number).collect();
    let tc = Tensor::from_vec([rows, 1], column.clone())?;
    let by_row: Vec<i64> = x.iter().enumerate().map(|(i, x)| x.wrapping_sub(column[i / columns])).collect();
    assert_eq!(of_two::<i64>(&tx, &tc, |x, y| x - y)?, by_row);
    assert_eq!(of_two::<i64>(&tc, &tc, |x, y| x - y)?, vec![0; rows]);
    Ok(())
}

#[test]
fn undefined_integer_quotients_and_powers_are_errors() -> Result<()> {
    let (x, y) = (Tensor::from_vec([2], vec![0_i32, 5])?, Tensor::from_vec([2], vec![-1_i32, 0])?);
    let e = of_two::<i32>(&x, &y, |x, y| x / y).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Data);
    assert!(e.to_string().ends_with("`Y`: division of an integer by 0"), "{e}");
    for divide in [Expr::floor_divide, Expr::remainder] {
        assert_eq!(of_two::<i32>(&x, &y, divide).unwrap_err().kind(), ErrorKind::Data);
    }
    let e = of_two::<i32>(&x, &y, Expr::pow).unwrap_err();
    assert!(e.to_string().ends_with("`X`: the integer 0 has no negative power"), "{e}");
    let (x, y) = (Tensor::from_vec([1], vec![i32::MIN])?, Tensor::from_vec([1], vec![-1_i32])?);
    assert_eq!(of_two::<i32>(&x, &y, |x, y| x / y)?, [i32::MIN]);
    Ok(())
}

#[test]
fn powers_of_integers_are_exact() -> Result<()> {
    let x = [3_i64, -2, 0, 1, -1, -1, 7, 10, 2];
    let y = [39_i64, 63, 0, -5, -3, i64::MAX, -1, 18, 64];
    let expected = [3_i64.pow(39), i64::MIN, 1, 1, -1, -1, 0, 10_i64.pow(18), 0];
    let (x, y) = (Tensor::from_vec([9], x.to_vec())?, Tensor::from_vec([9], y.to_vec())?);
    assert_eq!(of_two::<i64>(&x, &y, Expr::pow)?, expected);
    Ok(())
}

#[test]
fn integers_have_no_gradient() -> Result<()> {
    let net = Builder::new();
    let (x, n) = (net.input("x", DType::F64, &[3]), net.input("n", DType::I64, &[3]));
    differentiable(&net, &x);
    differentiable(&net, &n);
    let counted = (&n * &n + 1.0).cast(DType::F64);
    let y = (&x * &counted).mean();
    let mut program = net.program()?.clone();
    let built = gradients(&mut program, &[&y.name()], &["x", "n"], &Default::default())?;
    assert!(built.of(x.var()).is_some() && built.of(n.var()).is_none());
    assert!(
        !program.root().ops.iter().any(|op| op.ty.as_str() == "scale_grad" || op.ty.as_str() == "cast_grad")
    );

    let tape = autobwd::eager();
    let n = tape.leaf("n", Tensor::from_vec([1], vec![3_i64])?);
    assert!(!(&n * &n).requires_grad());
    let e = (&n * &n).backward().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoGradient, "{e}");
    Ok(())
}

/// A hand-written description is checked like the operator's struct.
#[test]
fn descriptions_check_numbers_for_integers() {
    let net = Builder::new();
    let x = net.input("n", DType::I32, &[2]);
    let op = Scale { x: (&x).into(), out: autobwd::New, scale: 2.5, bias: 0.0, bias_after_scale: true };
    let e = autobwd::emit(op).out.check().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Attr);
}
