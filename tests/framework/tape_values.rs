//! Values of the eager tape: overwritten, detached, sent to other threads, with a long history.

use std::thread;

use autobwd::{
    Arg, Builder, ErrorKind, Expr, Result, Tensor, emit,
    tape::{GradOptions, grad},
};
use autobwd_ops::{Math, shape::Assign};

use crate::support::tape::{leaf, tape};

#[test]
fn value_that_is_needed_must_not_be_overwritten() -> Result<()> {
    let tape = tape();
    let (x, y) = (leaf(&tape, "x", 2.0), leaf(&tape, "y", 3.0));
    // A sum saves neither operand, a product both.
    let (sum, product) = (&x + &y, &x * &y);
    x.set(Tensor::scalar(5.0)?)?;
    sum.backward()?;
    let line = line!() + 1;
    let square = x.square();
    tape.no_grad(|| emit(Assign { x: Arg::from(&y), out: (&x).into() }));
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

    let e = emit(Assign { x: Arg::from(&y), out: (&x).into() }).out.check().unwrap_err();
    assert!(e.to_string().contains("the leaf `x` cannot be overwritten by a recorded operator"), "{e}");
    let e = sum.set(Tensor::scalar(1.0)?).unwrap_err();
    assert!(e.to_string().ends_with("cannot be overwritten: only leaves and constants can"), "{e}");
    let e = x.set(Tensor::scalar(1.0_f32)?).unwrap_err();
    assert_eq!(e.to_string(), "`tensor` is float32 [], but `x` is float64 []");
    Ok(())
}

#[test]
fn reads_return_the_last_written_value() -> Result<()> {
    // Small and large values are stored differently.
    for n in [1, 40] {
        let tape = tape();
        let filled = |number: f32| Tensor::from_vec([n], vec![number; n]);
        let x = tape.leaf("x", filled(2.0)?);
        for number in [2.0, 3.0, 5.0] {
            x.set(filled(number)?)?;
            x.zero_grad();
            let seed = tape.constant(filled(10.0)?);
            seed.set(filled(1.0)?)?;
            autobwd::tape::backward_with(&(&x * &x), Some(&seed), &mut |_| {})?;
            assert_eq!(x.gradient()?.tensor()?, filled(2.0 * number)?);
        }
    }
    Ok(())
}

#[test]
fn values_go_from_thread_to_thread() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 3.0);
    let y = x.square().into_value()?;
    let there = thread::spawn(move || {
        let tape = autobwd::tape::eager_with_threads(1);
        let out = tape.hold(y) * 2.0;
        out.backward()?;
        out.into_value()
    });
    let out = tape.hold(there.join().unwrap()?);
    assert_eq!((out.item()?, x.gradient()?.item()?), (18.0, 12.0));
    (&out * 1.0).backward()?;
    assert_eq!(x.gradient()?.item()?, 24.0);
    Ok(())
}

#[test]
fn equal_values_of_two_threads_stay_distinct() -> Result<()> {
    // Both create as many values, in the same order, before they are combined.
    let there = |number: f64| {
        let made = move || -> Result<_> {
            let tape = autobwd::tape::eager_with_threads(1);
            let x = leaf(&tape, "x", number);
            let y = (0..5).fold(x.clone(), |y, _| y * 2.0);
            Ok((x.into_value()?, y.into_value()?))
        };
        thread::spawn(move || made().unwrap()).join().unwrap()
    };
    let tape = tape();
    let [(a, f), (b, g)] = [there(3.0), there(5.0)].map(|(x, y)| (tape.hold(x), tape.hold(y)));
    (&f * &g).backward()?;
    assert_eq!((a.gradient()?.item()?, b.gradient()?.item()?), (5.0 * 1024.0, 3.0 * 1024.0));
    let found = grad(&[&(&f + &g)], &[&b, &g], &GradOptions::default())?;
    let found: Vec<f64> = found.iter().flatten().map(|d| d.item()).collect::<Result<_>>()?;
    assert_eq!(found, [32.0, 1.0]);
    Ok(())
}

#[test]
fn detached_values_are_constants() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 3.0);
    let square = x.square();
    let detached = square.detach();
    assert!(!detached.requires_grad() && !detached.is_leaf());
    assert_eq!(detached.item()?, 9.0);
    assert!(square.requires_grad());
    assert_eq!(detached.backward().unwrap_err().kind(), ErrorKind::NoGradient);

    // d (9 x + x^2) = 9 + 2x, where 9 = x^2 is detached.
    (&detached * &x + &square).backward()?;
    assert_eq!(x.gradient()?.item()?, 15.0);
    assert!(detached.gradient().is_err());
    assert_eq!(grad(&[&(&detached * &x)], &[&square], &GradOptions::default())?.len(), 1);
    assert!(grad(&[&(&detached * &x)], &[&square], &GradOptions::default())?[0].is_none());

    // It does not change with the value it was made from.
    let leaf = x.detach();
    assert!(x.requires_grad() && !leaf.requires_grad());
    x.set(Tensor::scalar(5.0)?)?;
    assert_eq!((leaf.item()?, x.item()?), (3.0, 5.0));
    Ok(())
}

/// Number of operators of the longest chains.
const LENGTH: u64 = 1_000_000;

/// Passes a chain, `x`, its middle and its end, to a function, on a small stack.
fn with_a_chain(look: impl FnOnce(&Builder, &Expr, Expr, Expr) -> Result<()> + Send + 'static) -> Result<()> {
    let run = move || -> Result<()> {
        let tape = tape();
        let x = leaf(&tape, "x", 1.0);
        let half = |from: &Expr| (0..LENGTH / 2).fold(from.clone(), |y, _| y.sin());
        let middle = half(&x);
        let end = half(&middle);
        look(&tape, &x, middle, end)
    };
    thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap().join().unwrap()
}

#[test]
fn million_operators_in_a_row_overflow_no_stack() -> Result<()> {
    with_a_chain(|tape, x, _, end| {
        end.backward()?;
        assert!(x.gradient()?.item()? > 0.0);
        assert_eq!(tape.operators_run(), 2 * LENGTH);
        Ok(())
    })
}

#[test]
fn gradients_of_a_million_retaining_operators_overflow_no_stack() -> Result<()> {
    with_a_chain(|tape, x, middle, end| {
        let again = GradOptions { create_graph: true, ..GradOptions::default() };
        let first = grad(&[&end], &[x], &again)?.remove(0).unwrap();
        assert_eq!(tape.operators_run(), 2 * LENGTH);
        end.backward()?;
        assert_eq!(first.item()?.to_bits(), x.gradient()?.item()?.to_bits());
        // The history of the gradient holds that of the value; only the gradient is left.
        drop((middle, end));
        let second = grad(&[&first], &[x], &GradOptions::default())?.remove(0).unwrap();
        assert!(second.item()? < 0.0);
        drop(first);
        Ok(())
    })
}

#[test]
fn dropping_a_million_operators_overflows_no_stack() -> Result<()> {
    with_a_chain(|tape, x, middle, end| {
        drop((middle, end));
        assert!(x.gradient().is_err());
        assert_eq!(tape.operators_run(), LENGTH);
        Ok(())
    })
}

#[test]
fn half_of_a_million_operators_live_while_referenced() -> Result<()> {
    with_a_chain(|tape, x, middle, end| {
        drop(end);
        middle.backward()?;
        assert!(x.gradient()?.item()? > 0.0);
        assert_eq!(tape.operators_run(), LENGTH + LENGTH / 2);
        drop(middle);
        Ok(())
    })
}

#[test]
fn adding_derivatives_up_changes_none_that_others_have() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 3.0);
    let y = x.square();
    let (one, two) = (tape.constant(Tensor::scalar(5.0)?), tape.constant(Tensor::scalar(7.0)?));
    let how = GradOptions { seeds: Some(&[&one, &two]), ..GradOptions::default() };
    let found = grad(&[&y, &y], &[&x], &how)?.remove(0).unwrap();
    assert_eq!([found.item()?, one.item()?, two.item()?], [2.0 * 3.0 * 12.0, 5.0, 7.0]);
    Ok(())
}

#[test]
fn names_and_hooks_do_not_carry_over_to_later_values() -> Result<()> {
    let tape = tape();
    let x = leaf(&tape, "x", 2.0);
    for _ in 0..3 {
        let y = x.square();
        assert_eq!(y.name(), "square");
        let (y, z) = (y.clone().named("y"), y.exp());
        y.hook(|derivative| derivative * 10.0)?;
        drop(y);
        z.backward()?;
        assert_eq!(x.gradient()?.item()?, 10.0 * 4.0 * 4.0_f64.exp());
        x.zero_grad();
    }
    // Values freed together in one chain leave nothing, either.
    let z = x.square().exp().stop_gradient();
    assert!(!z.requires_grad() && z.clone().square().backward().is_err());
    Ok(())
}
