//! Recomputation of forward values: the same bits with less memory, and the cheapest choice for a budget.

use std::collections::HashSet;

use autobwd::{
    Arg, Backward, Builder, DType, ErrorKind, Executor, Meta, OpDesc, OpInfoMap, Program, Result, Tensor,
    Var, append_backward,
    backward::{Gradients, Recompute},
    emit, gradients,
    program::Origin,
};
use autobwd_ops::{Init, Math, increment::Increment};

use crate::support::{
    random_programs::{check, draw, recipes},
    recomputation::{Model, Numbers, dense, dropout, graph, layers, models, weight},
};

#[test]
fn values_computed_again_have_the_same_bits() -> Result<()> {
    for (name, model) in models()? {
        let kept = model.build(Recompute::None)?;
        let expected = model.run(&kept)?;
        let computed = model.computed();
        let all: Vec<&str> = computed.iter().map(String::as_str).collect();
        let some: Vec<&str> = all.iter().enumerate().filter(|(i, _)| i % 3 > 0).map(|(_, n)| *n).collect();
        let least = model.least();
        let ways = [
            Recompute::Named(&all[all.len() / 2..][..1]),
            Recompute::Named(&some),
            Recompute::Without(&all),
            Recompute::Without(&some),
            Recompute::auto(least, &model.feeds),
            Recompute::auto((least + kept.arena_bytes) / 2, &model.feeds),
        ];
        for way in ways {
            let built = model.build(way)?;
            autobwd::verify(&built.program)?;
            assert!(!built.found.recomputed.names.is_empty(), "{name}, {way:?}");
            assert_eq!(built.fetches, kept.fetches);
            assert_eq!(model.run(&built)?, expected, "{name}, {way:?}");
        }
    }
    Ok(())
}

#[test]
fn random_programs_have_the_same_gradients() {
    check(100, recipes(), |recipe| {
        let drawn = draw(&recipe);
        let forward = drawn.net.program()?.clone();
        let append = |checkpoints: Recompute<'_>| {
            let mut built = forward.clone();
            append_backward(
                &mut built,
                &drawn.loss,
                &Backward { recompute: checkpoints, ..Backward::default() },
            )
            .map(|found| (built, found))
        };
        let run = |(built, found): (Program, Gradients)| -> Result<Vec<Tensor>> {
            let grads: Vec<&str> = found.pairs.iter().map(|(_, g)| built.name(*g)).collect();
            Executor::with_threads(1).run(&built, &mut drawn.scope()?, &[], &grads)
        };
        let written = forward.root().ops.iter().flat_map(|op| op.writes());
        let all: Vec<&str> = written.map(|v| forward.name(v)).collect();
        let some: Vec<&str> = all.iter().copied().step_by(3).collect();
        // Overwritten values cannot be recomputed.
        let again: Vec<&str> =
            all.iter().copied().filter(|name| append(Recompute::Without(&[*name])).is_ok()).collect();
        let expected = run(append(Recompute::None)?)?;
        for way in [Recompute::Named(&some), Recompute::Without(&again)] {
            assert_eq!(run(append(way)?)?, expected, "{way:?}\n{forward}");
        }
        match append(Recompute::auto(1500, &[])) {
            Ok(built) => assert_eq!(run(built)?, expected, "{forward}"),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Budget, "{e}"),
        }
        Ok(())
    });
}

#[test]
fn costs_follow_from_shapes() -> Result<()> {
    let net = Builder::new();
    let [x, y] =
        [("x", &[5, 2, 3][..]), ("y", &[3, 4])].map(|(name, dims)| net.input(name, DType::F32, dims));
    x.matmul(&y).relu();
    let program = net.program()?;
    let of = |v: Var| Ok(program.root().vars.get(&v).unwrap().meta());
    let cost = |op: &OpDesc| OpInfoMap::linked()?.get(&op.ty)?.cost(op, &of);
    let costs = program.root().ops.iter().map(cost).collect::<Result<Vec<_>>>()?;
    assert_eq!(
        costs,
        [
            autobwd::op::Cost { flops: 2 * 5 * 2 * 4 * 3, bytes: 4 * (5 * 2 * 3 + 3 * 4 + 5 * 2 * 4) },
            autobwd::op::Cost { flops: 0, bytes: 4 * 2 * 5 * 2 * 4 }
        ]
    );
    assert_eq!(costs[0].picoseconds(), 10 * costs[0].flops + 50 * costs[0].bytes);
    Ok(())
}

#[test]
fn larger_budget_takes_no_more_time() -> Result<()> {
    for (name, model) in models()? {
        let (least, kept) = (model.least(), model.build(Recompute::None)?.arena_bytes);
        let mut last = u64::MAX;
        for step in 0..=20 {
            let budget = least + (kept - least) * step / 20;
            let built = model.build(Recompute::auto(budget, &model.feeds))?;
            let planned = built.found.recomputed.planned.unwrap();
            assert_eq!(planned.arena_bytes, built.arena_bytes);
            assert_eq!(planned.kept_arena_bytes, kept);
            assert!(built.arena_bytes <= budget, "{name}: {} of {budget}", built.arena_bytes);
            assert!(planned.again.picoseconds() <= last, "{name}: {budget} takes more time than less");
            last = planned.again.picoseconds();
        }
        assert_eq!(last, 0, "{name}");
        assert!(model.build(Recompute::auto(least - 1, &model.feeds)).is_err(), "{name}");
    }
    Ok(())
}

#[test]
fn deep_networks_need_a_fraction_of_the_memory() -> Result<()> {
    // Gradients of the weights, which live until the end, are 50 · 256 bytes of it.
    let deep = Model::new([256, 8], |net, x| {
        let mut h = x;
        for _ in 0..50 {
            h = h.matmul(&weight(net, &[8, 8])).tanh();
        }
        h.mean()
    })?;
    let kept = deep.build(Recompute::None)?.arena_bytes;
    assert!(deep.least() * 3 < kept, "{} of {kept}", deep.least());
    let root: Vec<String> = (1..7).map(|i| format!("tanh_{}", 7 * i)).collect();
    let names: Vec<&str> = root.iter().map(String::as_str).collect();
    let named = deep.build(Recompute::Named(&names))?;
    assert!(named.arena_bytes * 2 < kept, "{} of {kept}", named.arena_bytes);
    let auto = deep.build(Recompute::auto(named.arena_bytes, &deep.feeds))?;
    assert!(auto.found.recomputed.names.len() <= named.found.recomputed.names.len());
    Ok(())
}

/// The cost of recomputation for a budget, and the minimal cost.
fn compare(model: &Model, what: &str) -> Result<()> {
    let sets = model.all_sets()?;
    let costs = model.costs()?;
    let budgets: HashSet<usize> = sets.iter().map(|(_, arena_bytes)| *arena_bytes).collect();
    assert_eq!(budgets.iter().min(), sets.iter().map(|(_, a)| a).min());
    for budget in budgets {
        let (best, _) = sets.iter().find(|(_, arena_bytes)| *arena_bytes <= budget).unwrap();
        let built = model.build(Recompute::auto(budget, &model.feeds))?;
        let names = built.found.recomputed.names;
        let cost: u64 = costs.iter().filter(|(_, name)| names.contains(name)).map(|(cost, _)| cost).sum();
        assert_eq!(cost, built.found.recomputed.planned.unwrap().again.picoseconds());
        assert!(built.arena_bytes <= budget);
        assert_eq!(cost, *best, "{what}, {budget} bytes: {names:?}\n{}", model.net.program()?);
    }
    Ok(())
}

#[test]
fn no_choice_is_cheaper() -> Result<()> {
    for seed in 0..30 {
        let ops = 6 + seed as usize % 6;
        compare(&graph(&mut Numbers(seed), ops)?, &format!("seed {seed}"))?;
    }
    Ok(())
}

#[test]
fn no_choice_is_cheaper_on_longer_chains() -> Result<()> {
    // More sets than an exhaustive search covers.
    let equal = layers(13, |net, x| x.matmul(&weight(net, &[8, 8])))?;
    compare(&equal, "equal layers")?;
    Ok(())
}

#[test]
fn thousand_operators_are_searched_in_seconds() -> Result<()> {
    let long = layers(333, |net, x| dense(net, x).relu())?;
    let start = std::time::Instant::now();
    let budget = long.build(Recompute::None)?.arena_bytes * 3 / 4;
    let built = long.build(Recompute::auto(budget, &long.feeds))?;
    assert!(built.arena_bytes <= budget);
    // Far more than needed, far less than a scan of the program for each operator would take.
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    Ok(())
}

#[test]
fn results_can_be_given_back() -> Result<()> {
    let (_, model) = models()?.remove(2);
    let budget = (model.least() + model.build(Recompute::None)?.arena_bytes) / 2;
    let auto = model.build(Recompute::auto(budget, &model.feeds))?;
    let names: Vec<&str> = auto.found.recomputed.names.iter().map(String::as_str).collect();
    let again = model.build(Recompute::Without(&names))?;
    assert_eq!(again.program, auto.program);
    assert_eq!(again.found.recomputed.names, names);
    Ok(())
}

#[test]
fn report_names_recomputed_values() -> Result<()> {
    let model = layers(4, |net, x| x.matmul(&weight(net, &[8, 8])).tanh())?;
    assert_eq!(model.build(Recompute::None)?.found.recomputed.to_string(), "nothing is recomputed");
    let found = model.build(Recompute::Named(&["tanh_1"]))?.found;
    let names = "`matmul_v2_0`, `tanh_0`, `matmul_v2_1`";
    assert_eq!(found.recomputed.to_string(), format!("recomputed: {names}"));
    let computed = model.computed();
    let all: Vec<&str> = computed.iter().map(String::as_str).collect();
    let text = model.build(Recompute::Without(&all))?.found.recomputed.to_string();
    assert!(text.starts_with("recomputed: `matmul_v2_0`, `tanh_0`,"), "{text}");
    let recomputed = model.build(Recompute::auto(model.least(), &model.feeds))?.found.recomputed;
    let (planned, text) = (recomputed.planned.unwrap(), recomputed.to_string());
    let bytes = format!(" {} bytes instead of {}", planned.arena_bytes, planned.kept_arena_bytes);
    assert!(text.contains("% of the forward pass's work is repeated,") && text.ends_with(&bytes), "{text}");
    Ok(())
}

#[test]
fn refusals_leave_the_program_as_it_was() -> Result<()> {
    let model = Model::new([16, 8], |net, x| dropout(&dense(net, &x).tanh(), 3).mean())?;
    let (before, mut program) = (model.net.program()?.clone(), model.net.program()?.clone());
    let least = model.least();
    let wrong = [("x", Meta::new(DType::F32, [16, 9]))];
    let cases = [
        (Recompute::Named(&["tan_0"]), ErrorKind::UnknownVar, "no variable `tan_0`; did you mean `tanh_0`"),
        (
            Recompute::Named(&["tanh_0", "nothing like it"]),
            ErrorKind::UnknownVar,
            "no variable `nothing like it`",
        ),
        (
            Recompute::Without(&["tanh_1"]),
            ErrorKind::UnknownVar,
            "no variable `tanh_1`; did you mean `tanh_0`",
        ),
        (Recompute::Without(&["x"]), ErrorKind::Program, "`x` cannot be recomputed: no operator computes it"),
        (Recompute::auto(least - 1, &model.feeds), ErrorKind::Budget, "bytes cannot be met: a run takes at"),
        (Recompute::auto(least, &[]), ErrorKind::Feed, "`x` is read, but neither fed nor written before"),
        (Recompute::auto(least, &wrong), ErrorKind::Feed, "`x` cannot be fed"),
    ];
    for (checkpoints, kind, text) in cases {
        let e = model.append(&mut program, checkpoints).unwrap_err();
        assert_eq!(e.kind(), kind, "{e}");
        assert!(e.to_string().contains(text), "{e}\nlacks\n{text}");
        assert_eq!(program, before, "{e}");
    }
    Ok(())
}

#[test]
fn copies_say_what_they_are() -> Result<()> {
    let model = layers(3, |net, x| x.matmul(&weight(net, &[8, 8])).tanh())?;
    let built = model.build(Recompute::Named(&["tanh_1"]))?;
    let copies: Vec<(&str, Origin)> = (built.program.root().ops.iter())
        .filter(|op| matches!(op.origin, Origin::Recompute { .. }))
        .map(|op| (built.program.name(op.writes().next().unwrap()), op.origin))
        .collect();
    assert_eq!(
        copies,
        [
            ("matmul_v2_0.subprog_0", Origin::Recompute { of: 0 }),
            ("tanh_0.subprog_0", Origin::Recompute { of: 1 }),
            ("matmul_v2_1.subprog_0", Origin::Recompute { of: 2 }),
        ]
    );
    let loaded = Program::from_json(&built.program.to_json())?;
    assert_eq!(loaded, built.program);
    assert_eq!(loaded.root().ops.last().unwrap().origin, built.program.root().ops.last().unwrap().origin);
    Ok(())
}

#[test]
fn random_operators_get_their_seed_as_a_variable() -> Result<()> {
    let model = Model::new([16, 8], |net, x| {
        let h = dropout(&x.matmul(&weight(net, &[8, 8])), 11);
        h.matmul(&weight(net, &[8, 8])).tanh().mean()
    })?;
    // The mask is not saved: the whole operator is recomputed, although its output is saved.
    let built = model.build(Recompute::Named(&["dropout_0"]))?;
    let lines: Vec<String> = built.program.to_string().lines().map(String::from).collect();
    let line = |start: &str| lines.iter().filter(|l| l.trim_start().starts_with(start)).count();
    assert_eq!(line("seed_0.tmp_0 = seed(seed=11)"), 1);
    assert_eq!(line("Mask="), 2, "{}", built.program);
    assert!(lines.iter().filter(|l| l.contains("dropout(")).all(|l| l.contains("Seed=seed_0.tmp_0")));
    assert_eq!(model.run(&built)?, model.run(&model.build(Recompute::None)?)?);
    // Its insertion has moved the others by one.
    let of = |op: &autobwd::OpDesc| match op.origin {
        Origin::Gradient { of } => built.program.root().ops[of].ty == op.ty.trim_end_matches("_grad"),
        Origin::Recompute { of } => built.program.root().ops[of].ty == op.ty,
        _ => true,
    };
    assert!(built.program.root().ops.iter().all(of), "{}", built.program);
    Ok(())
}

#[test]
fn values_that_would_differ_are_saved() -> Result<()> {
    // The seed changes after the mask has been drawn; statistics may change only once.
    let model = Model::new([16, 8], |net, x| {
        let seed = net.persistable("seed", DType::I64, &[1], |s| Init::Constant(3.0).emit(s, 0));
        let h = dense(net, &x).tanh().dropout(0.5, &seed);
        drop(emit(Increment { x: (&seed).into(), out: Arg::from(&seed), step: 1.0 }));
        h.matmul(&weight(net, &[8, 8])).tanh().mean()
    })?;
    let kept = model.build(Recompute::None)?;
    let (expected, computed) = (model.run(&kept)?, model.computed());
    let again: Vec<&str> =
        computed.iter().map(String::as_str).filter(|n| !n.starts_with("dropout") && *n != "seed").collect();
    for way in [
        Recompute::Named(&["matmul_v2_1"]),
        Recompute::Without(&again),
        Recompute::auto(model.least(), &model.feeds),
    ] {
        let built = model.build(way)?;
        assert!(built.found.recomputed.names.contains(&"tanh_0".into()));
        assert!(!built.found.recomputed.names.iter().any(|n| n.starts_with("dropout")));
        assert_eq!(model.run(&built)?, expected, "{way:?}");
    }
    let e = model.build(Recompute::Without(&["dropout_0"])).err().unwrap();
    assert!(e.to_string().contains("or an operator overwrites it or one of its inputs"), "{e}");
    Ok(())
}

#[test]
fn gradients_of_gradients_pass_through_copies() -> Result<()> {
    let model = Model::new([4, 8], |net, x| {
        let h = dropout(&x.matmul(&weight(net, &[8, 8])).tanh(), 2);
        h.matmul(&weight(net, &[8, 3])).square().mean()
    })?;
    let second = |way: Recompute<'_>| -> Result<Vec<f64>> {
        let mut built = model.build(way)?;
        let grads = gradients(&mut built.program, &["w_0@GRAD"], &["w_0"], &Default::default())?.entries();
        autobwd::verify(&built.program)?;
        built.fetches = vec![built.program.name(grads[0].unwrap()).to_string()];
        Ok(model.run(&built)?[0].to_f64s())
    };
    let expected = second(Recompute::None)?;
    for way in
        [Recompute::Named(&["dropout_0"]), Recompute::Named(&["tanh_0"]), Recompute::Without(&["tanh_0"])]
    {
        let close = second(way)?.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close, "{way:?}");
    }
    Ok(())
}

#[test]
fn second_backward_part_has_copies_of_its_own() -> Result<()> {
    let model = layers(3, |net, x| x.matmul(&weight(net, &[8, 8])).tanh())?;
    let mut built = model.build(Recompute::Named(&["tanh_1"]))?;
    let expected = model.run(&built)?;
    let found = model.append(&mut built.program, Recompute::Named(&["tanh_1"]))?;
    autobwd::verify(&built.program)?;
    assert_eq!(found.recomputed, built.found.recomputed);
    let names = found.pairs.iter().map(|(_, grad)| built.program.name(*grad).to_string());
    built.fetches = [model.loss.clone()].into_iter().chain(names).collect();
    assert_eq!(model.run(&built)?, expected);
    Ok(())
}
