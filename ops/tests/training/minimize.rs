//! Calls that fail, and transactions around calls, leave program and startup program as they were.

use autobwd::{
    Backward, BlockId, Builder, DType, Error, ErrorKind, Expr, Program, Result, VarDesc, append_backward,
};
use autobwd_ops::{
    Math,
    optim::{Adam, AdamW, GradientClip, Momentum, Optimizer, ParameterGroups, Sgd, compute_gradients},
};

use crate::support::{elements, parameter, run, started};

fn programs(net: &Builder) -> Result<(Program, Program)> {
    Ok((net.program()?.clone(), net.startup().program()?.clone()))
}

/// Updates the first parameter, and fails at the second.
struct Half {
    /// Whether an expression fails, rather than the call.
    by_expression: bool,
}

impl Optimizer for Half {
    fn learning_rate(&self) -> f32 {
        0.1
    }

    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        Momentum { rate: 0.1, momentum: 0.9, nesterov: false, lazy: false }.update(
            parameter,
            gradient,
            learning_rate,
        )?;
        match (parameter.name().as_str(), self.by_expression) {
            ("w", _) => Ok(()),
            (_, true) => parameter.reshape(&[7]).check().map(drop),
            (_, false) => Err(Error::new(ErrorKind::Data, "not this one")),
        }
    }
}

#[test]
fn call_that_fails_changes_nothing() -> Result<()> {
    type Call = fn(&Expr) -> Result<()>;
    let calls: [(&str, Call); 9] = [
        ("clip", |loss| Adam::new(0.1).clip(GradientClip::GlobalNorm(0.0)).minimize(loss).map(drop)),
        ("group", |loss| AdamW::new(0.1).group("*.bias", AdamW::new(0.1)).minimize(loss).map(drop)),
        ("beta", |loss| Adam { beta1: 1.5, ..Adam::new(0.1) }.minimize(loss).map(drop)),
        ("rate", |loss| Sgd { rate: f32::NAN }.minimize(loss).map(drop)),
        ("half, call", |loss| Half { by_expression: false }.minimize(loss).map(drop)),
        ("half, expression", |loss| Half { by_expression: true }.minimize(loss).map(drop)),
        ("half, updates", |loss| {
            let gradients = compute_gradients(loss, &Backward::default())?.complete()?;
            let before = programs(loss.builder())?;
            let e = Half { by_expression: true }.apply_gradients(&gradients).unwrap_err();
            assert_eq!(programs(loss.builder())?, before);
            Err(e)
        }),
        ("parameters", |loss| {
            let unknown = Backward { parameters: Some(&["u"]), ..Backward::default() };
            Sgd { rate: 0.1 }.minimize_with(loss, &unknown).map(drop)
        }),
        ("nothing", |loss| Sgd { rate: 0.1 }.minimize(&loss.detach().mean()).map(drop)),
    ];
    for (name, call) in calls {
        let net = Builder::new();
        let loss = (parameter(&net, "w", 2, 1.0) * parameter(&net, "v", 2, 1.0)).sum(&[]);
        let transaction = (name == "half, updates" || name == "nothing").then(|| net.transaction());
        let before = programs(&net)?;
        assert!(call(&loss).is_err(), "{name}");
        drop(transaction);
        assert_eq!(programs(&net)?, before, "{name}");
        // The caller corrects the mistake and goes on.
        let trained = Sgd { rate: 0.5 }.minimize(&loss)?.complete()?;
        let names: Vec<String> = trained.iter().map(|(_, gradient)| gradient.name()).collect();
        assert_eq!(names, ["w@GRAD", "v@GRAD"], "{name}");
        let mut scope = started(&net)?;
        run(&net, &mut scope, &[], &[])?;
        assert_eq!((elements(&scope, "w"), elements(&scope, "v")), (vec![0.5; 2], vec![0.5; 2]), "{name}");
    }
    Ok(())
}

#[test]
fn transaction_takes_back_every_change() -> Result<()> {
    type Change = fn(&Builder, &Expr) -> Result<()>;
    let changes: [(&str, Change); 10] = [
        ("freeze", |net, _| net.expr("w").freeze().check().map(drop)),
        ("named", |_, loss| loss.clone().named("total").check().map(drop)),
        ("named before an operator", |net, loss| {
            loss.clone().named("total").check()?;
            net.expr("w").sum(&[]).check().map(drop)
        }),
        ("operator", |_, loss| loss.square().check().map(drop)),
        ("parameter", |net, _| parameter(net, "v", 1, 1.0).check().map(drop)),
        ("edit", |net, loss| net.edit(|p| append_backward(p, &loss.name(), &Backward::default())).map(drop)),
        ("set_program", |net, loss| {
            drop(loss.exp());
            net.set_program(Program::new());
            net.set_program(Program::new());
            Ok(())
        }),
        ("compute_gradients", |_, loss| compute_gradients(loss, &Backward::default()).map(drop)),
        ("minimize", |_, loss| Adam::new(0.5).minimize(loss).map(drop)),
        ("minimize after an operator", |_, loss| Adam::new(0.5).minimize(&(loss * 2.0)).map(drop)),
    ];
    for (name, change) in changes {
        let net = Builder::new();
        let loss = parameter(&net, "w", 1, 1.0).sum(&[]);
        let before = programs(&net)?;
        let outer = net.transaction();
        let inner = net.transaction();
        change(&net, &loss)?;
        inner.commit();
        drop(outer);
        assert_eq!(programs(&net)?, before, "{name}");
        // An inner transaction alone.
        let outer = net.transaction();
        let kept = (&loss + 1.0).name();
        let within = programs(&net)?;
        let inner = net.transaction();
        change(&net, &loss)?;
        drop(inner);
        assert_eq!(programs(&net)?, within, "{name}");
        outer.commit();
        net.expr(&kept).check()?;
        // What is committed stays.
        let transaction = net.transaction();
        change(&net, &loss)?;
        let after = programs(&net)?;
        transaction.commit();
        assert_eq!(programs(&net)?, after, "{name}");
    }
    Ok(())
}

#[test]
fn expressions_of_a_dropped_transaction_stay_distinct() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", 1, 1.0);
    let transaction = net.transaction();
    let loss = w.sum(&[]);
    net.edit(|program| append_backward(program, &loss.name(), &Backward::default()))?;
    let stale = net.expr("w@GRAD");
    let added = &stale + 1.0;
    drop(transaction);
    let new = w.exp();
    assert_ne!(new.name(), added.name());
    assert_eq!(stale.name(), "w@GRAD");
    assert!((&new + &stale).check().unwrap_err().to_string().contains("`w@GRAD` is not a variable"));
    Ok(())
}

#[test]
fn expressions_of_a_transaction_that_renamed_stay_distinct() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", 1, 1.0);
    let sum = w.sum(&[]);
    let transaction = net.transaction();
    let total = sum.clone().named("total");
    // It gets the name that is free again.
    let stale = [w.sum(&[]), w.exp()];
    drop(transaction);
    assert_eq!((sum.name(), total.name()), ("reduce_sum_0".into(), "reduce_sum_0".into()));
    let new = [w.sum(&[]), w.exp()];
    for (stale, new) in stale.iter().zip(&new) {
        assert_ne!(new.name(), stale.name());
        let e = (new + stale).check().unwrap_err().to_string();
        assert!(e.contains("is not a variable"), "{e}");
    }
    Ok(())
}

#[test]
fn transaction_takes_back_changes_of_other_blocks() -> Result<()> {
    let net = Builder::new();
    let x = parameter(&net, "x", 1, 1.0);
    let (block, y) = net.sub_block(|| Ok(x.exp()))?;
    let before = net.program()?.clone();
    type Change = fn(&Builder, BlockId, &Expr, &Expr) -> Result<()>;
    let changes: [Change; 3] = [
        |net, block, x, _| net.within(block, || x.tanh().check().map(drop)),
        |net, block, _, _| net.variable(block, "v", VarDesc::new(DType::F32, [1].into())).check().map(drop),
        |net, block, _, y| {
            net.declare_in(block, y, VarDesc::data(DType::F32, [1].into()));
            Ok(())
        },
    ];
    for change in changes {
        let transaction = net.transaction();
        change(&net, block, &x, &y)?;
        assert_ne!(*net.program()?, before);
        drop(transaction);
        assert_eq!(*net.program()?, before);
    }
    Ok(())
}

#[test]
fn errors_name_the_line_of_the_call() -> Result<()> {
    let net = Builder::new();
    let loss = (parameter(&net, "w", 2, 1.0) * parameter(&net, "v", 2, 1.0)).sum(&[]);
    let mut lines = vec![];
    let mut calls = vec![];
    lines.push(line!() + 1);
    calls.push(Sgd { rate: -1.0 }.minimize(&loss).map(drop));
    lines.push(line!() + 1);
    calls.push(Half { by_expression: true }.minimize(&loss).map(drop));
    lines.push(line!() + 1);
    calls.push(Half { by_expression: false }.minimize(&loss).map(drop));
    lines.push(line!() + 1);
    calls.push(Adam::new(0.1).group("u", Adam::new(0.1)).minimize(&loss).map(drop));
    lines.push(line!() + 1);
    calls.push(GradientClip::Norm(-1.0).apply(&[]).map(drop));
    for (call, line) in calls.into_iter().zip(lines) {
        let e = call.unwrap_err().to_string();
        assert!(e.contains(&format!("training/minimize.rs:{line}")), "line {line}: {e}");
        assert!(!e.contains("optim/"), "{e}");
    }
    // All operators have the line of the call, through groups and closures, also in the startup program.
    let groups = ParameterGroups::group(Adam::new(0.1).group("w", Adam::new(0.2)), "v", Sgd { rate: 0.5 });
    let line = line!() + 1;
    groups.minimize(&loss)?.complete()?;
    let (program, startup) = programs(&net)?;
    let updates = program.root().ops.iter().filter(|op| ["adam", "sgd", "scale"].contains(&op.ty.as_str()));
    let starts = startup.root().ops.iter().skip(2);
    let mut count = 0;
    for op in updates.chain(starts) {
        let site = op.site.map(|site| site.to_string()).unwrap_or_default();
        assert!(site.ends_with(&format!("training/minimize.rs:{line}")), "{}: {site}", op.ty);
        count += 1;
    }
    assert!(count > 6, "{count}");
    Ok(())
}
