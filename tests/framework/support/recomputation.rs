//! Models whose forward values are recomputed.

use std::collections::HashSet;

use autobwd::{
    Backward, Builder, DType, ErrorKind, Executor, Expr, Meta, New, OpInfoMap, Program, Result, Scope,
    Tensor, Var, append_backward,
    backward::{Gradients, Recompute},
    emit,
};
use autobwd_ops::{
    Init, Math,
    dropout::{DropoutImplementation, DropoutOp},
};

/// A model, its loss and the shape of its input `x`.
pub(crate) struct Model {
    pub(crate) net: Builder,
    pub(crate) loss: String,
    pub(crate) feeds: [(&'static str, Meta); 1],
    pub(crate) executor: Executor,
    pub(crate) scope: Scope,
}

/// A program with its backward pass.
pub(crate) struct Built {
    pub(crate) program: Program,
    pub(crate) found: Gradients,
    /// The loss and all gradients.
    pub(crate) fetches: Vec<String>,
    pub(crate) arena_bytes: usize,
}

pub(crate) fn weight(net: &Builder, dims: &[usize]) -> Expr {
    net.parameter(&net.unique("w"), DType::F32, dims, |w| Init::Uniform(-0.7, 0.7).emit(w, 7))
}

impl Model {
    pub(crate) fn new(dims: [usize; 2], describe: impl FnOnce(&Builder, Expr) -> Expr) -> Result<Model> {
        let net = Builder::new();
        let x = net.input("x", DType::F32, &dims.map(|d| d as i64));
        let loss = describe(&net, x).name();
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        Ok(Model { net, loss, feeds: [("x", Meta::new(DType::F32, dims))], executor, scope })
    }

    pub(crate) fn append(&self, program: &mut Program, checkpoints: Recompute<'_>) -> Result<Gradients> {
        append_backward(program, &self.loss, &Backward { recompute: checkpoints, ..Backward::default() })
    }

    pub(crate) fn build(&self, checkpoints: Recompute<'_>) -> Result<Built> {
        let mut program = self.net.program()?.clone();
        let found = self.append(&mut program, checkpoints)?;
        let mut fetches = vec![self.loss.clone()];
        fetches.extend(found.pairs.iter().map(|(_, grad)| program.name(*grad).to_string()));
        let names: Vec<&str> = fetches.iter().map(String::as_str).collect();
        let mut scope = self.scope.clone();
        let arena_bytes = self.executor.prepare(&program, &mut scope, &self.feeds, &names)?.arena_bytes();
        Ok(Built { program, found, fetches, arena_bytes })
    }

    /// The bits of the fetched values.
    pub(crate) fn run(&self, built: &Built) -> Result<Vec<Tensor>> {
        let dims = self.feeds[0].1.dims.known().unwrap();
        let elements = (0..dims.iter().product()).map(|i| (i as f32 * 0.37).sin()).collect();
        let x = Tensor::from_vec(&dims[..], elements)?;
        let names: Vec<&str> = built.fetches.iter().map(String::as_str).collect();
        Executor::with_threads(2).run(&built.program, &mut self.scope.clone(), &[("x", &x)], &names)
    }

    /// The variables that operators compute.
    pub(crate) fn computed(&self) -> Vec<String> {
        let program = self.net.program().unwrap();
        let vars = program.root().ops.iter().flat_map(|op| op.writes());
        vars.map(|v| program.name(v).to_string()).collect()
    }

    /// For each operator: its cost, and its first output.
    pub(crate) fn costs(&self) -> Result<Vec<(u64, String)>> {
        let program = self.net.program()?;
        let of = |v: Var| Ok(program.root().vars.get(&v).unwrap().meta());
        let ops = program.root().ops.iter();
        let costs = ops.map(|op| {
            let first = op.writes().next().map(|v| program.name(v).to_string());
            Ok((OpInfoMap::linked()?.get(&op.ty)?.cost(op, &of)?.picoseconds(), first.unwrap_or_default()))
        });
        costs.collect()
    }

    /// Every set of operators that can be recomputed: cost and arena bytes, the cheapest first.
    pub(crate) fn all_sets(&self) -> Result<Vec<(u64, usize)>> {
        let computed = self.computed();
        let all: Vec<&str> = computed.iter().map(String::as_str).collect();
        let most: HashSet<String> =
            self.build(Recompute::Without(&all))?.found.recomputed.names.into_iter().collect();
        let costs: Vec<_> = self.costs()?.into_iter().filter(|(_, name)| most.contains(name)).collect();
        let mut sets = vec![];
        for chosen in 0..1_usize << costs.len() {
            let set: Vec<_> =
                costs.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1).map(|(_, op)| op).collect();
            let names: Vec<&str> = set.iter().map(|(_, name)| name.as_str()).collect();
            sets.push((
                set.iter().map(|(cost, _)| cost).sum(),
                self.build(Recompute::Without(&names))?.arena_bytes,
            ));
        }
        sets.sort();
        Ok(sets)
    }

    /// The smallest budget, from an error message.
    pub(crate) fn least(&self) -> usize {
        let e = self.build(Recompute::auto(0, &self.feeds)).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Budget, "{e}");
        let (_, rest) = e.message().split_once("a run takes at least ").unwrap();
        rest.split_once(' ').unwrap().0.parse().unwrap()
    }
}

/// Consecutive layers, and the mean of squares.
pub(crate) fn layers(depth: usize, layer: impl Fn(&Builder, &Expr) -> Expr) -> Result<Model> {
    Model::new([16, 8], |net, x| {
        let mut h = x;
        for _ in 0..depth {
            h = layer(net, &h);
        }
        h.square().mean()
    })
}

pub(crate) fn dense(net: &Builder, x: &Expr) -> Expr {
    x.matmul(&weight(net, &[8, 8])) + weight(net, &[8])
}

pub(crate) fn dropout(x: &Expr, seed: i32) -> Expr {
    let op = DropoutOp {
        x: x.into(),
        seed_tensor: None,
        out: New,
        mask: New,
        dropout_prob: 0.4,
        dropout_implementation: DropoutImplementation::UpscaleInTrain,
        is_test: false,
        fix_seed: true,
        seed,
    };
    emit(op).out
}

/// A small generator with the same numbers on every machine.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Random operators, each on some of the last values.
pub(crate) fn graph(numbers: &mut Numbers, ops: usize) -> Result<Model> {
    Model::new([32, 16], |net, x| {
        let mut values = vec![x.matmul(&weight(net, &[16, 8]))];
        while net.program().unwrap().root().ops.len() < ops {
            let mut draw = |of: usize| values[values.len() - 1 - numbers.below(values.len().min(of))].clone();
            let (a, b) = (draw(3), draw(4));
            let width = a.dims()[1].get().unwrap_or(1);
            values.push(match numbers.below(9) {
                0 => a.tanh(),
                1 => a.square(),
                2 => a.softmax(1),
                3 => a.sigmoid(),
                4 if a.dims() == b.dims() => &a * &b,
                5 if a.dims() == b.dims() => &a + &b,
                6 => &a * 0.7,
                _ => a.matmul(&weight(net, &[width, 4 << numbers.below(4)])),
            });
        }
        values[values.len() - 1].mean()
    })
}

/// Several kinds of networks.
pub(crate) fn models() -> Result<Vec<(&'static str, Model)>> {
    Ok(vec![
        ("mlp", layers(3, |net, x| dense(net, x).relu())?),
        ("deep", layers(50, |net, x| x.matmul(&weight(net, &[8, 8])).tanh())?),
        ("residual", layers(12, |net, x| x + dense(net, x).tanh())?),
        ("dropout", layers(4, |net, x| dropout(&dense(net, x).sigmoid(), 5))?),
        ("shared", {
            Model::new([16, 8], |net, x| {
                let w = weight(net, &[8, 8]);
                let (a, b) = (x.matmul(&w).tanh(), x.square().matmul(&w).softmax(1));
                let c = (&a * &b + &a).exp();
                (c.matmul(&w) + &x).square().mean()
            })?
        }),
    ])
}
