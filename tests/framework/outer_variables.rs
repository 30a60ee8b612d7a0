//! Bodies of loops, branches and recurrences that overwrite variables of the surrounding block.

use std::slice::from_ref;

use autobwd::{
    Backward, Builder, DType, Executor, Expr, Program, Result, Scope, Tensor, append_backward, emit, verify,
};
use autobwd_ops::{
    Init, Math,
    control::{cond, scan, while_loop},
    nn::{BatchNorm, Dropout},
    shape::Assign,
};

use crate::support::{
    control_flow::{keep_every, number},
    derivatives::{assert_near, parameter},
};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Loop,
    /// Two loops around the step.
    Nested,
    /// Some steps of a loop.
    Branch,
    /// In a step of a recurrence.
    Scan,
}

fn repeat(net: &Builder, times: i64, first: &Expr, body: impl Fn(&Expr, &Expr) -> Expr) -> Expr {
    let end = number(net, times);
    let next = |v: &[Expr]| vec![&v[0] + 1.0, body(&v[0], &v[1])];
    while_loop(&[number(net, 0), first.clone()], |v| v[0].less_than(&end), next).remove(1)
}

fn overwrite(product: &Expr, h: &Expr) -> Expr {
    emit(Assign { x: (product * h + 0.5).into(), out: product.into() }).out
}

/// Layers with state, and a variable that every step overwrites; or the same steps unrolled. Returns the variables to
/// compare, the loss first.
fn model(kind: Kind, control: bool) -> (Builder, Vec<String>) {
    let net = Builder::new();
    let w = parameter(&net, "w", &[4, 3]);
    let (dropout, norm) = (Dropout::new(&net, 0.5, 7), BatchNorm::builder(&net, 3).dtype(DType::F64).build());
    let (product, first) = (w.square(), &w * 1.0);
    let step = |h: &Expr, row: &Expr| {
        let h = (dropout.forward(&norm.forward(h)) * &w + row).tanh();
        // The gradient through variables that a block within a block overwrites is not supported yet.
        if !matches!(kind, Kind::Nested | Kind::Branch) {
            overwrite(&product, &h);
        }
        h
    };
    let row = |i: i32| w.slice(0, i, i + 1).reshape(&[3]);
    let last = match (kind, control) {
        (Kind::Loop, true) => repeat(&net, 3, &first, |_, h| step(h, &row(0))),
        (Kind::Nested, true) => repeat(&net, 2, &first, |_, h| repeat(&net, 2, h, |_, h| step(h, &row(0)))),
        (Kind::Branch, true) => repeat(&net, 3, &first, |i, h| {
            let early = i.less_than(&number(&net, 2));
            cond(&early, || vec![step(h, &row(0))], || vec![h.clone()]).remove(0)
        }),
        (Kind::Scan, true) => {
            let found = scan(from_ref(&w), from_ref(&first), false, |row, h| {
                let h = step(&h[0], &row[0]);
                (vec![h.clone()], vec![h])
            });
            found[0].slice(0, 3, 4).reshape(&[4, 3])
        }
        (Kind::Loop, false) => (0..3).fold(first, |h, _| step(&h, &row(0))),
        (Kind::Nested, false) => (0..4).fold(first, |h, _| step(&h, &row(0))),
        (Kind::Branch, false) => (0..2).fold(first, |h, _| step(&h, &row(0))),
        (Kind::Scan, false) => (0..4).fold(first, |h, i| step(&h, &row(i))),
    };
    let loss = last.square().sum(&[]) + product.sum(&[]);
    let kept = [&loss, &dropout.seed, &norm.mean, &norm.variance].map(Expr::name);
    (net, kept.to_vec())
}

/// The values after each of two runs.
fn run(kind: Kind, control: bool, every: i32) -> Result<Vec<Tensor>> {
    let (net, names) = model(kind, control);
    let mut program = net.program()?.clone();
    keep_every(&mut program, every);
    append_backward(&mut program, &names[0], &Backward::default())?;
    verify(&program)?;
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let fetches: Vec<&str> = names.iter().map(String::as_str).chain(["w@GRAD"]).collect();
    let mut found = executor.run(&program, &mut scope, &[], &fetches)?;
    found.extend(executor.run(&program, &mut scope, &[], &fetches)?);
    Ok(found)
}

#[test]
fn gradient_through_nested_overwrite_is_refused() -> Result<()> {
    for branch in [false, true] {
        let net = Builder::new();
        let w = parameter(&net, "w", &[3]);
        let product = w.square();
        let step = |_: &Expr, h: &Expr| {
            let h = (h * &w).tanh();
            overwrite(&product, &h);
            h
        };
        repeat(&net, 2, &(&w * 1.0), |i, h| match branch {
            true => {
                let first = i.less_than(&number(&net, 1));
                cond(&first, || vec![step(i, h)], || vec![h.clone()]).remove(0)
            }
            false => repeat(&net, 2, h, step),
        });
        let loss = product.sum(&[]).name();
        let mut program = net.program()?.clone();
        let e = append_backward(&mut program, &loss, &Backward::default()).unwrap_err().to_string();
        assert!(e.contains("no gradient passes through `square_0`"), "{e}");
        assert!(e.contains("outer_variables.rs"), "{e}");
    }
    Ok(())
}

#[test]
fn layers_save_the_same_values_inside_a_body() -> Result<()> {
    for (kind, steps) in [(Kind::Loop, 3), (Kind::Nested, 4), (Kind::Branch, 2), (Kind::Scan, 4)] {
        let expected = run(kind, false, 0)?;
        for every in [0, 2] {
            let found = run(kind, true, every)?;
            let counters = found.iter().filter(|t| t.dtype() == DType::I64);
            let counters = counters.map(|t| Ok(t.slice::<i64>()?[0])).collect::<Result<Vec<_>>>()?;
            assert_eq!(counters[1] - counters[0], steps, "{kind:?}");
            for (found, expected) in found.iter().zip(&expected) {
                assert_near(&found.to_f64s(), &expected.to_f64s(), 1e-12);
            }
        }
    }
    Ok(())
}

#[test]
fn dropout_masks_differ_by_loop_step() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[64]);
    let dropout = Dropout::new(&net, 0.5, 1);
    // Digits that each record the mask of a step.
    let digits = repeat(&net, 3, &(&x * 0.0), |_, sum| sum * 10.0 + dropout.forward(&x) * 0.5);
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = Tensor::from_vec([64], vec![1.0; 64])?;
    let mut masks = vec![];
    for _ in 0..2 {
        let found = executor.run(&net.program()?, &mut scope, &[("x", &x)], &[&digits.name()])?;
        let digit = |of: f64| found[0].to_f64s().iter().map(|x| (x / of) as i64 % 10).collect::<Vec<_>>();
        masks.extend([100.0, 10.0, 1.0].map(digit));
    }
    for (i, mask) in masks.iter().enumerate() {
        assert!(mask.contains(&0) && mask.contains(&1), "{mask:?}");
        assert!(!masks[..i].contains(mask), "step {i} drops what another has dropped");
    }
    Ok(())
}

#[test]
fn body_that_overwrites_a_parameter_is_refused() {
    type Construct = fn(&Expr, &Expr) -> Vec<Expr>;
    fn body(x: &Expr, w: &Expr) -> Vec<Expr> {
        let next = x + 1.0;
        drop(emit(Assign { x: x.into(), out: w.into() }));
        vec![next]
    }
    fn flag(x: &Expr, w: &Expr) -> Expr {
        x.mean().less_than(&w.mean())
    }
    let constructs: [Construct; 4] = [
        |x, w| while_loop(from_ref(x), |_| flag(x, w), |v| body(&v[0], w)),
        |x, w| cond(&flag(x, w), || body(x, w), || vec![x.clone()]),
        |x, w| cond(&flag(x, w), || vec![x.clone()], || body(x, w)),
        |x, w| scan(from_ref(w), &[], false, |_, _| (vec![], body(x, w))),
    ];
    for construct in constructs {
        let net = Builder::new();
        let w = net.parameter("w", DType::F64, &[2], |w| Init::Constant(0.5).emit(w, 0));
        let x = net.input("x", DType::F64, &[2]);
        let e = construct(&x, &w)[0].check().unwrap_err().to_string();
        assert!(e.starts_with("operator `assign` (block ") && e.contains("outer_variables.rs:"), "{e}");
        assert!(e.contains(" writes the parameter `w`"), "{e}");
        assert_eq!(net.program().unwrap_err().to_string(), e);
    }
}

#[test]
fn variables_overwritten_by_a_body_must_be_outputs() -> Result<()> {
    let net = Builder::new();
    let kept = net.persistable("kept", DType::F64, &[2], |x| Init::Constant(0.0).emit(x, 0));
    let x = parameter(&net, "x", &[2]);
    let loss = repeat(&net, 2, &x, |_, h| {
        let h = h * 2.0;
        drop(emit(Assign { x: (&h).into(), out: (&kept).into() }));
        h
    })
    .sum(&[])
    .name();
    let refused = |change: &dyn Fn(&mut Program)| -> Result<[String; 3]> {
        let mut program = net.program()?.clone();
        change(&mut program);
        let mut scope = Scope::new();
        Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
        let text = |outcome: Result<()>| outcome.map_or_else(|e| e.to_string(), |()| String::new());
        let run = Executor::new().run(&program, &mut scope, &[], &[&loss]).map(drop);
        let verified = verify(&program);
        let built = append_backward(&mut program, &loss, &Backward::default()).map(drop);
        Ok([verified, run, built].map(text))
    };
    assert_eq!(refused(&|_| {})?, [""; 3].map(String::from));
    let without = |p: &mut Program| {
        let kept = p.expect_var("kept").expect("it is there");
        for op in p.root_mut().ops.iter_mut().filter(|op| op.ty == "while") {
            let others: Vec<_> = op.outputs.get("Out").iter().copied().filter(|v| *v != kept).collect();
            op.outputs.set("Out", others);
        }
    };
    let parameter = |p: &mut Program| {
        let kept = p.expect_var("kept").expect("it is there");
        p.root_mut().vars.get_mut(&kept).expect("it is there").parameter = true;
    };
    for (change, text) in [
        (&without as &dyn Fn(&mut Program), "block 1 writes `kept`, which is not among the outputs"),
        (&parameter, "block 1 writes the parameter `kept`"),
    ] {
        for e in refused(change)? {
            assert!(
                e.contains("operator `assign` (block 1, operator ") && e.contains("outer_variables.rs:"),
                "{e}"
            );
            assert!(e.contains(text), "{e}");
        }
    }
    Ok(())
}
