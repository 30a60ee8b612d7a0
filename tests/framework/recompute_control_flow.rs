//! Laws of recomputation for every kind of control flow and every kind of layer: the bits of a run without
//! recomputation, a valid program, and no more memory than the budget.

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Expr, Meta, Program, Result, Scope, Tensor,
    append_backward,
    backward::{Gradients, Recompute},
    verify,
};
use autobwd_ops::{
    Init, Math,
    control::{Branch, cond, scan, static_rnn, switch_case, while_loop},
    nn::{Conv2d, Dropout, Gru, LayerNorm, Linear, Lstm, MultiHeadAttention, Pool2d, Rnn},
};

const SIZE: usize = 4;

/// Control flow between an input and a parameter, both of shape `[SIZE, SIZE]`.
type Part = fn(&Builder, &Expr, &Expr) -> Expr;

/// Repeats `body` so many times.
fn repeat(times: f64, first: &Expr, body: impl Fn(&Expr, &Expr) -> Expr) -> Expr {
    let zero = first.sum(&[]) * 0.0;
    let end = &zero + times;
    while_loop(&[first.clone(), zero], |v| v[1].less_than(&end), |v| vec![body(&v[0], &v[1]), &v[1] + 1.0])
        .swap_remove(0)
}

/// Whether the sum of the elements is less than the number.
fn below(x: &Expr, number: f64) -> Expr {
    let sum = x.sum(&[]);
    sum.less_than(&(&sum * 0.0 + number))
}

const PARTS: [(&str, Part); 15] = [
    ("none", |_, x, w| x.matmul(w).tanh()),
    ("while", |_, x, w| repeat(3.0, x, |v, _| v.matmul(w).tanh())),
    ("while, linear", |_, x, w| repeat(3.0, x, |v, _| v.matmul(w))),
    ("while without a step", |_, x, w| repeat(0.0, x, |v, _| v.matmul(w).tanh())),
    ("while that carries the parameter", |_, x, w| repeat(4.0, w, |v, _| (v * w).sin() + x)),
    ("while in while", |_, x, w| {
        repeat(3.0, x, |v, count| repeat(2.0, v, |u, _| (u * w).tanh() + w) * w + count * 0.1)
    }),
    ("scan", |_, x, w| {
        let start = x.sum(&[0]).tanh();
        let step = |x: &[Expr], h: &[Expr]| {
            let next = (h[0].unsqueeze(&[0]).matmul(w).reshape(&[SIZE as i32]) + &x[0]).tanh();
            (vec![next.clone()], vec![next])
        };
        scan(&[x.square()], &[start], false, step).swap_remove(0)
    }),
    ("cond, first branch", |_, x, w| {
        cond(&below(x, 1e9), || vec![x.matmul(w).tanh()], || vec![x.matmul(w)]).swap_remove(0)
    }),
    ("cond, second branch", |_, x, w| {
        cond(&below(x, -1e9), || vec![x.matmul(w).tanh()], || vec![x.matmul(w) + w.exp()]).swap_remove(0)
    }),
    ("switch", |_, x, w| {
        let index = (x.sum(&[]) * 0.0 + 1.0).cast(DType::I64).reshape(&[1]);
        let branches: Vec<(i64, Branch<'_>)> =
            vec![(0, Box::new(|| vec![w.square()])), (1, Box::new(|| vec![(w * x).exp()]))];
        switch_case(&index, branches, Box::new(|| vec![w.clone()])).swap_remove(0)
    }),
    ("recurrence", |net, x, w| {
        let start = w.mean_over(&[0]);
        static_rnn(net, true, |rnn| {
            let (x, h) = (rnn.step_input(x), rnn.memory(&start));
            let next = (&h * &x + w.sum(&[0])).tanh();
            rnn.update_memory(&h, &next);
            rnn.step_output(&next);
        })
        .swap_remove(0)
    }),
    ("recurrence with saved steps", |net, x, w| {
        let (x, start) = (x.tanh(), w.mean_over(&[0]));
        static_rnn(net, false, |rnn| {
            rnn.checkpoint_every(2);
            let (x, h) = (rnn.step_input(&x), rnn.memory(&start));
            let next = (&h * &x).sin();
            rnn.update_memory(&h, &next);
            rnn.step_output(&next);
        })
        .swap_remove(0)
    }),
    ("cond in scan", |_, x, w| {
        let step = |x: &[Expr], h: &[Expr]| {
            let (x, h) = (&x[0], &h[0]);
            let next = cond(&below(x, 0.0), || vec![(h * x).sin()], || vec![(h + x * w.mean()).tanh()]);
            (vec![next[0].clone()], vec![&next[0] * w.mean_over(&[0])])
        };
        scan(std::slice::from_ref(x), &[w.sum(&[1])], false, step).swap_remove(0)
    }),
    ("while in cond in scan", |_, x, w| {
        let step = |x: &[Expr], h: &[Expr]| {
            let (x, h) = (&x[0], &h[0]);
            let next =
                cond(&below(x, 0.0), || vec![repeat(2.0, h, |v, _| (v * w.mean()).sin())], || vec![h * x]);
            (vec![next[0].clone()], vec![next[0].clone()])
        };
        scan(std::slice::from_ref(x), &[w.sum(&[1])], false, step).swap_remove(0)
    }),
    ("cond in while", |_, x, w| {
        repeat(3.0, x, |v, count| {
            let odd = below(&(count * 1.0 - 1.0).square(), 0.5);
            cond(&odd, || vec![v.matmul(w).tanh()], || vec![v * w]).swap_remove(0)
        })
    }),
];

/// A model with input `x`, and the name of its loss.
struct Model {
    net: Builder,
    loss: String,
    feeds: [(&'static str, Meta); 1],
    scope: Scope,
}

struct Built {
    program: Program,
    found: Gradients,
    arena_bytes: usize,
    values: Vec<Tensor>,
}

impl Model {
    fn new(dims: &[usize], describe: impl FnOnce(&Builder, Expr) -> Expr) -> Result<Model> {
        let net = Builder::new();
        let wire: Vec<i64> = dims.iter().map(|dim| *dim as i64).collect();
        let x = net.input("x", DType::F32, &wire);
        let loss = describe(&net, x).name();
        let mut scope = Scope::new();
        Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
        Ok(Model { net, loss, feeds: [("x", Meta::new(DType::F32, dims))], scope })
    }

    /// The program with its backward pass, and the loss and all gradients of a run.
    fn build(&self, recompute: Recompute<'_>) -> Result<Built> {
        let mut program = self.net.program()?.clone();
        let backward = Backward { recompute, ..Backward::default() };
        let found = append_backward(&mut program, &self.loss, &backward)?;
        verify(&program)?;
        let pairs = found.pairs.iter();
        let fetches: Vec<&str> =
            [self.loss.as_str()].into_iter().chain(pairs.map(|(_, grad)| program.name(*grad))).collect();
        let mut executor = Executor::with_threads(2);
        let mut scope = self.scope.clone();
        let arena_bytes = executor.prepare(&program, &mut scope, &self.feeds, &fetches)?.arena_bytes();
        let dims = self.feeds[0].1.dims.known().unwrap();
        let elements = (0..dims.iter().product()).map(|i| (i as f32 * 0.37).sin()).collect();
        let x = Tensor::from_vec(dims, elements)?;
        let values = executor.run(&program, &mut scope, &[("x", &x)], &fetches)?;
        Ok(Built { program, found, arena_bytes, values })
    }

    /// The variables that operators of the root block compute.
    fn computed(&self) -> Result<Vec<String>> {
        let program = self.net.program()?;
        let vars = program.root().ops.iter().flat_map(|op| op.writes());
        Ok(vars.map(|v| program.name(v).to_string()).collect())
    }
}

/// Compares every kind of recomputation with a run without. Returns the most operators that were recomputed.
fn check(name: &str, model: &Model) -> Result<usize> {
    let kept = model.build(Recompute::None)?;
    let computed = model.computed()?;
    let all: Vec<&str> = computed.iter().map(String::as_str).collect();
    // Values that are overwritten, or read by the gradient of a loop, stay.
    let mut free = vec![];
    for name in &all {
        match model.build(Recompute::Without(&[*name])) {
            Ok(_) => free.push(*name),
            Err(e) => assert!(e.message().contains("cannot be recomputed"), "{name}: {e}"),
        }
    }
    let refused = model.build(Recompute::auto(0, &model.feeds)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Budget, "{name}: {refused}");
    let (_, rest) = refused.message().split_once("a run takes at least ").unwrap();
    let least: usize = rest.split_once(' ').unwrap().0.parse().unwrap();
    assert!(least <= kept.arena_bytes, "{name}");

    let thirds: Vec<&str> = all.iter().copied().step_by(3).collect();
    let third: Vec<&str> = free.iter().copied().step_by(3).collect();
    let budgets = [usize::MAX, kept.arena_bytes, (least + kept.arena_bytes) / 2, least];
    let mut ways = vec![
        (Recompute::Named(&[]), kept.arena_bytes),
        (Recompute::Named(&["x"]), usize::MAX),
        (Recompute::Named(&thirds), usize::MAX),
        (Recompute::Named(&all), usize::MAX),
        (Recompute::Without(&[]), kept.arena_bytes),
        (Recompute::Without(&third), usize::MAX),
        (Recompute::Without(&free), usize::MAX),
    ];
    ways.extend(budgets.map(|budget| (Recompute::auto(budget, &model.feeds), budget.min(kept.arena_bytes))));
    let mut most = 0;
    for (way, limit) in ways {
        let built = model.build(way)?;
        assert_eq!(built.values, kept.values, "{name}, {way:?}\n{}", built.program);
        assert!(built.arena_bytes <= limit, "{name}, {way:?}: {} of {limit} bytes", built.arena_bytes);
        assert_eq!(built.found.missing.len(), kept.found.missing.len(), "{name}, {way:?}");
        if let Some(planned) = built.found.recomputed.planned {
            assert_eq!(planned.arena_bytes, built.arena_bytes, "{name}, {way:?}");
            assert_eq!(planned.kept_arena_bytes, kept.arena_bytes, "{name}, {way:?}");
        }
        most = most.max(built.found.recomputed.names.len());
    }
    assert!(model.build(Recompute::auto(least - 1, &model.feeds)).is_err(), "{name}");
    Ok(most)
}

#[test]
fn programs_with_control_flow_recompute_to_the_same_bits() -> Result<()> {
    for (name, part) in PARTS {
        let model = Model::new(&[SIZE, SIZE], |net, x| {
            let weight = |name: &str, seed| {
                net.parameter(name, DType::F32, &[SIZE, SIZE], |w| Init::Uniform(-0.6, 0.6).emit(w, seed))
            };
            let before = x.matmul(&weight("first", 1)).tanh().exp().sigmoid();
            let within = part(net, &before, &weight("w", 2));
            within.tanh().matmul(&weight("last", 3)).sin().square().mean()
        })?;
        assert!(check(name, &model)? > 0, "{name}: nothing is recomputed");
    }
    Ok(())
}

#[test]
fn layers_recompute_to_the_same_bits() -> Result<()> {
    let mut models = vec![
        (
            "mlp",
            Model::new(&[8, 6], |net, x| {
                let hidden = Linear::builder(net, 6, 12).build().forward(&x).tanh();
                Linear::builder(net, 12, 1).build().forward(&hidden).square().mean()
            })?,
        ),
        (
            "convolution",
            Model::new(&[2, 1, 8, 8], |net, x| {
                let x = Conv2d::builder(net, 1, 3, 3).padding(1).build().forward(&x).relu();
                let x = Pool2d::max(2).stride(2).forward(&x).flatten(1, -1);
                Linear::builder(net, 48, 5).build().forward(&x).softmax(1).square().mean()
            })?,
        ),
        (
            "attention",
            Model::new(&[2, 6, 8], |net, x| {
                let norm = LayerNorm::builder(net, 8).build().forward(&x);
                let x = &x + &MultiHeadAttention::builder(net, 8, 2).causal().build().forward(&norm);
                Dropout::new(net, 0.2, 7)
                    .forward(&Linear::builder(net, 8, 4).build().forward(&x))
                    .square()
                    .mean()
            })?,
        ),
    ];
    models.push((
        "rnn",
        Model::new(&[5, 3, 2], |net, x| {
            Rnn::builder(net, 2, 4).build().forward(&x.tanh()).0.square().mean()
        })?,
    ));
    models.push((
        "gru",
        Model::new(&[5, 3, 2], |net, x| {
            Gru::builder(net, 2, 4).build().forward(&x.tanh()).0.square().mean()
        })?,
    ));
    models.push((
        "lstm",
        Model::new(&[5, 3, 2], |net, x| {
            let (hidden, _) = Lstm::builder(net, 2, 4).build().forward(&x.tanh());
            Linear::builder(net, 4, 2).build().forward(&hidden.mean_over(&[0])).square().mean()
        })?,
    ));
    for (name, model) in models {
        check(name, &model)?;
    }
    Ok(())
}

#[test]
fn value_that_a_loop_gradient_reads_by_name_is_kept() -> Result<()> {
    let model = Model::new(&[SIZE, SIZE], |net, x| {
        let w = net.parameter("w", DType::F32, &[SIZE, SIZE], |w| Init::Uniform(-0.6, 0.6).emit(w, 1));
        let h = x.matmul(&w).tanh();
        repeat(2.0, &x, |v, _| v.sin() * &h).mean()
    })?;
    let refused = model.build(Recompute::Without(&["tanh_0"])).err().unwrap();
    assert!(refused.message().contains("the gradient of a loop or branch reads it"), "{refused}");
    Ok(())
}
