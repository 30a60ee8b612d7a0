//! A builder never panics, and closures that panic or fail leave it unchanged.

use std::panic::{self, AssertUnwindSafe, Location};

use autobwd::{
    Backward, BlockId, Builder, DType, Error, ErrorKind, Executor, Expr, Feed, Program, Result, Scope,
    Tensor, append_backward, tensor::Bool, verify,
};
use autobwd_ops::{
    Init, Math,
    control::{cond, static_rnn, while_loop},
};

#[test]
fn program_can_be_run_and_built_in_one_line() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let t = Tensor::from_vec([2], vec![1.0_f32, 2.0])?;
    let mut scope = Scope::new();
    // The program was taken before the operator was added, so it has no such variable.
    let e = Executor::new().run(&net.program()?, &mut scope, &[("x", &t)], &[&x.exp().name()]).unwrap_err();
    assert_eq!(e.to_string(), "cannot fetch: the program has no variable `exp_0`");
    let found = Executor::new().run(&net.program()?, &mut scope, &[("x", &t)], &["exp_0"])?;
    assert_eq!(found[0].to_f64s()[0], f64::from(1.0_f32.exp()));
    Ok(())
}

#[test]
fn snapshot_stays_as_it_is_and_costs_nothing() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    assert!(std::ptr::eq(&*net.program()?, &*net.program()?), "nothing is copied");
    let before = net.program()?;
    let text = before.to_string();
    let y = x.exp();
    let y = cond(&y.sum(&[]).less_than(&x.sum(&[])), || vec![x.tanh()], || vec![y.clone()]);
    assert_eq!(before.to_string(), text);
    assert_eq!((before.root().ops.len(), before.blocks().len(), net.program()?.blocks().len()), (0, 1, 3));
    let at = |program: &Program| std::ptr::from_ref(program);
    let place = at(&*net.program()?);
    y[0].square();
    assert_eq!(at(&*net.program()?), place, "without snapshots, the program changes where it is");
    Ok(())
}

#[test]
fn edits_may_read_the_builder() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[2], |p| Init::Constant(1.0).emit(p, 0));
    let loss = w.square().mean();
    let found = net.edit(|p| {
        assert_eq!((loss.dims().len(), net.program()?.root().ops.len()), (0, 2));
        append_backward(p, &loss.name(), &Backward::default())
    })?;
    assert_eq!(net.program()?.name(found.pairs[0].1), "w@GRAD");
    verify(&*net.program()?)
}

#[test]
fn edits_are_atomic() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let before = net.program()?.clone();
    let add = |p: &mut Program| p.root_mut().ops.extend(before.root().ops.clone());
    let refused = net.edit(|p| {
        add(p);
        p.add_block(Some(BlockId::ROOT), None);
        Err::<(), _>(Error::new(ErrorKind::Program, "mine"))
    });
    assert_eq!((refused.unwrap_err().message(), *net.program()? == before), ("mine", true));
    let edit = AssertUnwindSafe(|| net.edit(|p| -> Result<()> { panic!("{:?}", p.add_block(None, None)) }));
    assert!(panic::catch_unwind(edit).is_err());
    assert!(*net.program()? == before);

    // Within `edit`, the builder works; then `edit` fails, since one of the two changes would be lost.
    let text = "the program was changed through its builder while `edit` changed a copy of it";
    let e = net.edit(|p| Ok((p.add_block(Some(BlockId::ROOT), None), x.exp()))).unwrap_err();
    assert_eq!(e.to_string(), text);
    let e = net.edit(|_| net.edit(|p| Ok(p.add_block(Some(BlockId::ROOT), None)))).unwrap_err();
    assert_eq!(e.to_string(), text);
    assert_eq!((net.program()?.root().ops.len(), net.program()?.blocks().len()), (1, 2));
    x.tanh();
    Ok(())
}

#[test]
fn initialisers_may_build() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let w = net.parameter("w", DType::F32, &[2], |w| {
        net.persistable("inner", DType::F32, &[2], |v| Init::Constant(2.0).emit(v, 0));
        x.exp();
        net.edit(|_| Ok(())).unwrap();
        Init::Constant(net.program().unwrap().root().ops.len() as f64).emit(w, 0)
    });
    let mut scope = Scope::new();
    Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
    assert_eq!(
        (scope.get("w")?.to_f64s()[0], scope.get("inner")?.to_f64s()[0], w.name().as_str()),
        (1.0, 2.0, "w")
    );

    // A closure that panics declares no variable.
    let (before, startup) = (net.program()?.clone(), net.startup().program()?.clone());
    let panics = || net.parameter("v", DType::F32, &[2], |v| panic!("{v}"));
    assert!(panic::catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert!(*net.program()? == before && *net.startup().program()? == startup);
    // Neither does one that fails: the name is free, but both programs are withheld.
    let fails = |v: &Expr| v.builder().failed(Error::new(ErrorKind::Data, "mine"));
    let half = |v: &Expr| {
        Init::Constant(1.0).emit(v, 0);
        x.tanh();
        fails(v)
    };
    let e = net.parameter("v", DType::F32, &[2], half).check().unwrap_err().to_string();
    assert!(e.starts_with("mine\n  at tests/framework/builder_panics.rs:"), "{e}");
    net.parameter("v", DType::F32, &[2], |v| Init::Constant(1.0).emit(v, 0)).check()?;
    assert_eq!(net.program().unwrap_err().to_string(), e);
    assert_eq!(net.startup().program().unwrap_err().to_string(), e);
    let tape = autobwd::tape::eager_with_threads(1);
    assert_eq!(tape.parameter("v", DType::F32, &[2], fails).check().unwrap_err().message(), "mine");
    tape.parameter("v", DType::F32, &[2], |v| Init::Constant(1.0).emit(v, 0)).check()?;
    assert_eq!(tape.parameters().len(), 1);
    Ok(())
}

/// Faults of a closure.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Panic,
    Error,
    /// It returns values that do not fit.
    Misfit,
}

impl Fault {
    fn strike(self, x: &Expr) -> Expr {
        match self {
            Fault::Panic => panic!("mine"),
            Fault::Error => x.builder().failed(Error::new(ErrorKind::Data, "mine")),
            Fault::Misfit => x.sum(&[]),
        }
    }
}

type Construct<'a> = Box<dyn Fn() -> Vec<Expr> + 'a>;

/// The functions that run closures, by name.
fn constructs<'a>(
    net: &'a Builder,
    [x, b, w]: [&'a Expr; 3],
    fault: Fault,
) -> Vec<(&'static str, Construct<'a>)> {
    // Its changes, in the block and around it, are rolled back.
    let wrong = move || {
        x.exp();
        net.parameter(&net.unique("p"), DType::F32, &[2], |p| Init::Constant(1.0).emit(p, 0));
        (x * w).tanh();
        fault.strike(x)
    };
    vec![
        ("first branch", Box::new(move || cond(b, || vec![wrong()], || vec![x.tanh()]))),
        ("second branch", Box::new(move || cond(b, || vec![x.tanh()], || vec![wrong()]))),
        (
            "branch within a branch",
            Box::new(move || {
                let inner = || cond(b, || vec![x.tanh()], || vec![wrong()]);
                cond(b, inner, || vec![x.tanh()])
            }),
        ),
        (
            "condition of a loop",
            Box::new(move || while_loop(std::slice::from_ref(x), |_| wrong(), |v| vec![v[0].tanh()])),
        ),
        (
            "body of a loop",
            Box::new(move || {
                while_loop(
                    std::slice::from_ref(x),
                    |v| v[0].sum(&[]).less_than(&x.sum(&[])),
                    |_| vec![wrong()],
                )
            }),
        ),
        (
            "step of a recurrence",
            Box::new(move || {
                static_rnn(net, false, |rnn| {
                    let (part, memory) = (rnn.step_input(x), rnn.memory(x));
                    rnn.step_output(&part);
                    rnn.update_memory(&memory, &wrong());
                })
            }),
        ),
    ]
}

#[test]
fn fault_in_a_closure_leaves_the_builder_where_it_was() -> Result<()> {
    let model = || {
        let net = Builder::new();
        let (x, b) = (net.input("x", DType::F32, &[2]), net.input("b", DType::Bool, &[1]));
        let w = net.parameter("w", DType::F32, &[2], |p| Init::Constant(3.0).emit(p, 0));
        (net, x, b, w)
    };
    for fault in [Fault::Error, Fault::Misfit] {
        let (net, x, b, w) = model();
        for k in 0..constructs(&net, [&x, &b, &w], fault).len() {
            let (net, x, b, w) = model();
            let (name, construct) = constructs(&net, [&x, &b, &w], fault).swap_remove(k);
            let built = construct();
            assert!(!built.is_empty(), "{name}: no fault");
            for expr in &built {
                let e = expr.check().expect_err(name);
                assert!(fault == Fault::Misfit || e.message() == "mine", "{name}: {e}");
                assert_eq!(e.to_string(), net.program().unwrap_err().to_string(), "{name}");
            }
            assert!(net.startup().program().is_err(), "{name}");
            assert_eq!(net.block(), BlockId::ROOT, "{name}");
        }
    }
    {
        let (net, x, b, w) = model();
        let before = (net.program()?.clone(), net.startup().program()?.clone());
        for (name, construct) in constructs(&net, [&x, &b, &w], Fault::Panic) {
            assert!(panic::catch_unwind(AssertUnwindSafe(construct)).is_err(), "{name}: no fault");
            assert_eq!(net.block(), BlockId::ROOT, "{name}");
            assert_eq!(net.program()?.to_string(), before.0.to_string(), "{name}");
            assert!(*net.program()? == before.0 && *net.startup().program()? == before.1, "{name}");
        }
        let y = cond(&b, || vec![x.tanh()], || vec![&x * &w])[0].clone();
        verify(&*net.program()?)?;
        let mut scope = Scope::new();
        Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
        let feeds: [(&str, &dyn Feed); 2] = [
            ("x", &Tensor::from_vec([2], vec![1.0_f32, 2.0])?),
            ("b", &Tensor::from_vec([1], vec![Bool::from(false)])?),
        ];
        let found = Executor::new().run(&net.program()?, &mut scope, &feeds, &[&y.name()])?;
        assert_eq!(found[0].to_f64s(), [3.0, 6.0]);
    }
    Ok(())
}

#[test]
fn blocks_are_left_when_a_panic_passes() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let (block, _) = net.sub_block(|| Ok(x.exp()))?;
    let within = || net.within(block, || panic!("mine"));
    assert!(panic::catch_unwind(AssertUnwindSafe(within)).is_err());
    assert_eq!(net.block(), BlockId::ROOT);

    // One transaction is not committed, another one is.
    let count = || net.program().unwrap().root().ops.len();
    let open = net.transaction();
    x.tanh();
    drop(open);
    assert_eq!(count(), 0);
    let open = net.transaction();
    x.tanh();
    open.commit();
    assert_eq!(count(), 1);
    // A program that replaced the old one meanwhile is taken back.
    let open = net.transaction();
    net.edit(|p| {
        p.root_mut().ops.clear();
        Ok(())
    })?;
    assert_eq!(count(), 0);
    drop(open);
    assert_eq!(count(), 1);
    Ok(())
}

#[track_caller]
fn here() -> &'static Location<'static> {
    Location::caller()
}

#[test]
fn guards_end_in_any_order() -> Result<()> {
    let net = Builder::new();
    let outer = net.set_name_scope("x.".into());
    let inner = net.set_name_scope("y.".into());
    assert_eq!(net.scoped("w"), "y.w");
    drop(outer);
    assert_eq!(net.scoped("w"), "y.w");
    let last = net.set_name_scope("z.".into());
    drop(inner);
    assert_eq!(net.scoped("w"), "z.w");
    drop(last);
    assert_eq!(net.scoped("w"), "w");

    let x = net.input("x", DType::F32, &[2]);
    let line = || -> Result<u32> {
        x.tanh().check()?;
        let site = net.program()?.root().ops.last().and_then(|op| op.site).map(|site| site.to_string());
        Ok(site.and_then(|site| site.rsplit(':').next()?.parse().ok()).unwrap_or_default())
    };
    let own = line()?;
    let (first, second) = (here(), here().line() + 1);
    let (outer, inner) = (net.called_at(first), net.called_at(here()));
    assert_eq!(line()?, first.line());
    drop(outer);
    assert_eq!(line()?, second);
    drop(inner);
    assert_eq!(line()?, own);
    Ok(())
}

#[test]
fn transactions_end_in_any_order() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2]);
    let before = net.program()?.clone();
    let outer = net.transaction();
    net.set_program(Program::new());
    let inner = net.transaction();
    drop(outer);
    drop(inner);
    assert_eq!(*net.program()?, before);
    x.tanh().check()?;
    net.program()?;
    Ok(())
}
