//! Values of the eager tape: overwritten, detached, sent to other threads.

use std::thread;

use autobwd::{
    Arg, Builder, ErrorKind, Result, Tensor, emit,
    tape::{Grad, grad},
};
use autobwd_ops::{Math, shape::Assign};

use super::tape::{leaf, tape};

#[test]
fn a_value_that_is_needed_must_not_be_overwritten() -> Result<()> {
    let tape = tape();
    let (x, y) = (leaf(&tape, "x", 2.0), leaf(&tape, "y", 3.0));
    // A sum needs neither, a product both.
    let (sum, product) = ((&x + &y)?, (&x * &y)?);
    x.set(Tensor::scalar(5.0)?)?;
    sum.backward()?;
    let line = line!() + 1;
    let square = x.square()?;
    tape.no_grad(|| emit(Assign { x: Arg::from(&y), out: (&x).into() }))?;
    let overwriting = line!() - 1;
    let text = product.backward().unwrap_err().to_string();
    assert!(text.starts_with("operator `elementwise_mul` (run at "), "{text}");
    assert!(text.contains("version 0 of `x` is needed, but it has been overwritten"), "{text}");
    assert!(text.ends_with("it is at version 2"), "{text}");
    let text = square.backward().unwrap_err().to_string();
    let place = format!("tests/framework/tape_values.rs:{line};");
    assert!(text.starts_with("operator `square` (run at ") && text.contains(&place), "{text}");
    assert!(
        text.contains("the last time by `assign` at ") && text.contains(&format!(":{overwriting}:")),
        "{text}"
    );
    assert_eq!(x.item()?, 3.0);

    let e = emit(Assign { x: Arg::from(&y), out: (&x).into() }).err().unwrap();
    assert!(e.to_string().contains("the leaf `x` would lose the derivative of what overwrites it"), "{e}");
    let e = sum.set(Tensor::scalar(1.0)?).unwrap_err();
    assert!(e.to_string().ends_with("was computed; only a value that was given can be overwritten"), "{e}");
    let e = x.set(Tensor::scalar(1.0_f32)?).unwrap_err();
    assert_eq!(e.to_string(), "`tensor` is float32 [], but `x` is float64 []");
    Ok(())
}

#[test]
fn what_is_read_is_what_was_written_last() -> Result<()> {
    // Small values and large ones are kept differently.
    for n in [1, 40] {
        let tape = tape();
        let filled = |number: f32| Tensor::from_vec([n], vec![number; n]);
        let x = tape.leaf("x", filled(2.0)?);
        for number in [2.0, 3.0, 5.0] {
            x.set(filled(number)?)?;
            x.zero_grad();
            let seed = tape.constant(filled(10.0)?);
            seed.set(filled(1.0)?)?;
            (&x * &x)?.backward_with(Some(&seed), &mut |_| {})?;
            assert_eq!(x.gradient()?.tensor()?, filled(2.0 * number)?);
        }
    }
    Ok(())
}

#[test]
fn values_go_from_thread_to_thread() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 3.0);
    let y = x.square()?.into_value()?;
    let there = thread::spawn(move || {
        let tape = Builder::eager_with_threads(1);
        let out = (&tape.hold(y) * 2.0)?;
        out.backward()?;
        out.into_value()
    });
    let out = tape.hold(there.join().unwrap()?);
    assert_eq!((out.item()?, x.gradient()?.item()?), (18.0, 12.0));
    (&out * 1.0)?.backward()?;
    assert_eq!(x.gradient()?.item()?, 24.0);
    Ok(())
}

#[test]
fn what_threads_have_made_alike_is_kept_apart() -> Result<()> {
    // Both make as many values, in the same order, before these meet.
    let there = |number: f64| {
        let made = move || -> Result<_> {
            let tape = Builder::eager_with_threads(1);
            let x = leaf(&tape, "x", number);
            let y = (0..5).try_fold(x.clone(), |y, _| &y * 2.0)?;
            Ok((x.into_value()?, y.into_value()?))
        };
        thread::spawn(move || made().unwrap()).join().unwrap()
    };
    let tape = tape();
    let [(a, f), (b, g)] = [there(3.0), there(5.0)].map(|(x, y)| (tape.hold(x), tape.hold(y)));
    (&f * &g)?.backward()?;
    assert_eq!((a.gradient()?.item()?, b.gradient()?.item()?), (5.0 * 1024.0, 3.0 * 1024.0));
    let found = grad(&[&(&f + &g)?], &[&b, &g], &Grad::default())?;
    let found: Vec<f64> = found.iter().flatten().map(|d| d.item()).collect::<Result<_>>()?;
    assert_eq!(found, [32.0, 1.0]);
    Ok(())
}

#[test]
fn what_is_detached_is_a_constant() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 3.0);
    let square = x.square()?;
    let detached = square.detach()?;
    assert!(!detached.has_derivative() && !detached.is_leaf());
    assert_eq!(detached.item()?, 9.0);
    assert!(square.has_derivative());
    assert_eq!(detached.backward().unwrap_err().kind(), ErrorKind::NoGradient);

    // d (9 x + x^2) = 9 + 2x, with 9 = x^2 held fast.
    (&(&detached * &x)? + &square)?.backward()?;
    assert_eq!(x.gradient()?.item()?, 15.0);
    assert!(detached.gradient().is_err());
    assert_eq!(grad(&[&(&detached * &x)?], &[&square], &Grad::default())?.len(), 1);
    assert!(grad(&[&(&detached * &x)?], &[&square], &Grad::default())?[0].is_none());

    // It does not change with what it was made from.
    let leaf = x.detach()?;
    assert!(x.has_derivative() && !leaf.has_derivative());
    x.set(Tensor::scalar(5.0)?)?;
    assert_eq!((leaf.item()?, x.item()?), (3.0, 5.0));
    Ok(())
}
