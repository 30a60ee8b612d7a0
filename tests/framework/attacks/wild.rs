//! An operator with a block whose `BlockCall` is random and changes with every request.

use std::cell::Cell;

use autobwd::{
    BlockId, Builder, DType, Dims, Executor, Expr, Feed, NoGrad, Program, Result, Scope, Tensor, Var,
    VarDesc, emit,
    op::{BlockCall, CarriedInit, CarriedValue, Control, StepCount},
    program::VarKind,
    register_op,
    tensor::Bool,
};
use autobwd_ops::{Init, Math};

/// Runs its block in a random way.
#[register_op(grad = NoGrad, name = "attack_wild")]
pub(crate) struct Wild<V = Var> {
    /// Tensors of several shapes and dtypes.
    #[input]
    pub x: Vec<V>,
    /// Four tensors.
    #[output]
    pub out: Vec<V>,
    /// Saved step state.
    #[output]
    pub scopes: V,
    /// The block.
    #[block]
    pub body: BlockId,
}

thread_local! {
    /// Seed of the next call, and its increment.
    static SEED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    fn one(&mut self, of: &[Var]) -> Var {
        of[self.below(of.len())]
    }
}

impl Control for Wild {
    fn call(&self, program: &Program) -> Result<BlockCall> {
        let (seed, change) = SEED.get();
        SEED.set((seed.wrapping_add(change), change));
        let dice = &mut Dice(seed);
        let inner: Vec<Var> =
            program.block(self.body).map(|b| b.vars.keys().copied().collect()).unwrap_or_default();
        let all: Vec<Var> = self.x.iter().chain(&self.out).chain(&inner).copied().collect();
        let inner = if inner.is_empty() { all.clone() } else { inner };
        let mut outs = self.out.clone();

        let kind = dice.below(6);
        let branch = kind == 0;
        let steps = match kind {
            0 => StepCount::If(self.x[2]),
            1 => StepCount::Times(3 + dice.below(2)),
            _ => StepCount::Each { reverse: dice.below(2) == 0 },
        };
        let mut call = BlockCall::new(self.body, steps);
        call.reads = vec![self.x[4]];
        if branch {
            let (first, zeros) = (CarriedInit::Value(self.x[4], self.x[4]), CarriedInit::ZerosLike(inner[1]));
            call.carried.push(CarriedValue { first, start: inner[0], end: inner[0], last: outs.pop() });
            call.carried.push(CarriedValue {
                first: zeros,
                start: inner[1],
                end: inner[1],
                last: outs.pop(),
            });
        } else {
            call.slices = vec![(self.x[0], inner[0], self.x[0]), (self.x[1], inner[1], self.x[1])];
        }
        for _ in 0..dice.below(3) {
            let first = match dice.below(4) {
                0 => CarriedInit::ZerosLike(dice.one(&all)),
                1 => CarriedInit::ZerosLike(dice.one(&inner)),
                _ => CarriedInit::Value(dice.one(&self.x), dice.one(&all)),
            };
            let last = if dice.below(3) > 0 { outs.pop() } else { None };
            let start = if dice.below(5) == 0 { dice.one(&all) } else { dice.one(&inner) };
            let end = if dice.below(5) == 0 { dice.one(&all) } else { dice.one(&inner) };
            call.carried.push(CarriedValue { first, start, end, last });
        }
        for _ in 0..dice.below(3) {
            call.stacks.extend(outs.pop().map(|out| (dice.one(&inner), out)));
        }
        for _ in 0..dice.below(3) {
            let Some(out) = outs.pop() else { continue };
            let (term, anything) = (dice.one(&inner), dice.below(3) == 0);
            call.sums.push((term, out, dice.one(if anything { &all } else { &self.x })));
        }
        if dice.below(4) == 0 {
            let which = dice.below(call.slices.len());
            if let Some(slice) = call.slices.get_mut(which) {
                match dice.below(3) {
                    0 => slice.0 = dice.one(&self.x),
                    1 => slice.1 = dice.one(&inner),
                    _ => slice.2 = dice.one(&all),
                }
            }
        }
        if dice.below(8) == 0 {
            call.reads.push(dice.one(&all));
        }
        call.scopes = (dice.below(2) == 0).then_some(self.scopes);
        call.every = (dice.below(4) == 0).then(|| dice.below(3));
        if dice.below(30) == 0 {
            call.block = BlockId::ROOT;
        }
        Ok(call)
    }
}

/// The number of outputs that could be computed.
fn run(seed: u64) -> Result<usize> {
    SEED.set((seed, if seed.is_multiple_of(11) { 7919 } else { 0 }));
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[3], |w| Init::Constant(0.5).emit(w, 0));
    let x = net.input("x", DType::F32, &[-1, 3]);
    let z = net.input("z", DType::F32, &[-1, 300]);
    let b = net.input("b", DType::Bool, &[1]);
    let i = net.input("i", DType::I64, &[5]);
    let of = |dims: &[i64]| Ok(VarDesc::new(DType::F32, Dims::from_wire(dims)?));
    let (body, _) = net.sub_block(|| -> Result<()> {
        let block = net.block();
        let var = |name: &str, dims: &[i64]| -> Result<Expr> { Ok(net.variable(block, name, of(dims)?)) };
        let (p, q, r) = (var("p", &[3])?, var("q", &[300])?, var("r", &[-1])?);
        let _ = (&p * &w).tanh() + q.sum(&[]);
        if seed.is_multiple_of(3) {
            r.tanh();
        }
        if seed.is_multiple_of(7) {
            net.declare_in(block, &x, of(&[3])?);
            x.square();
        }
        Ok(())
    })?;
    let dims: [&[i64]; 4] = [&[3], &[-1, 3], &[-1], &[300]];
    let outs = (0..4).map(|k| Ok(net.variable(net.block(), "out", of(dims[(k + seed as usize) % 4])?)));
    let outs = outs.collect::<Result<Vec<Expr>>>()?;
    let scopes = VarDesc { kind: VarKind::StepScopes, ..VarDesc::new(DType::F32, Dims::from([])) };
    emit(Wild {
        x: [&x, &z, &b, &i, &w].map(Into::into).into(),
        out: outs.iter().map(Into::into).collect(),
        scopes: (&net.variable(net.block(), "scopes", scopes)).into(),
        body,
    })
    .scopes
    .check()?;
    let (mut executor, mut scope) = (Executor::with_threads(2).loop_limit(50), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let n = 4;
    let (x, z) = (
        Tensor::from_vec([n, 3], vec![0.5_f32; n * 3])?,
        Tensor::from_vec([n, 300], vec![0.25_f32; n * 300])?,
    );
    let (b, i) = (Tensor::from_vec([1], vec![Bool::from(true)])?, Tensor::from_vec([5], vec![1_i64; 5])?);
    let feeds: [(&str, &dyn Feed); 4] = [("x", &x), ("z", &z), ("b", &b), ("i", &i)];
    let found = outs.iter().map(|out| executor.run(&net.program()?, &mut scope, &feeds, &[&out.name()]));
    Ok(found.filter(Result::is_ok).count())
}

#[test]
fn any_declared_block_is_run_or_refused() {
    // The last seeds once caused panics.
    let (mut ran, mut refused) = (0, 0);
    for seed in (0..400).chain(5700..5720) {
        match run(seed) {
            Ok(n) => (ran, refused) = (ran + n, refused + 4 - n),
            Err(_) => refused += 4,
        }
    }
    assert!(ran > 0 && refused > 100, "{ran} ran, {refused} were refused");
}
