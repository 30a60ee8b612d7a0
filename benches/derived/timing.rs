//! One operator, prepared to run on data that stands in the scope, and its time.

use std::time::Instant;

use autobwd::{
    Attr, DType, Dims, Executor, OpDesc, OpInfo, Program, Result, Scope, Session, Tensor, Var, VarDesc,
};
use autobwd_benches::{median, ms};

/// Elements of every slot: what an operator reads and writes stays in the caches next to the core.
const ELEMENTS: usize = 4096;
/// Runs between two looks at the clock.
const RUNS: usize = 10;
/// Milliseconds of a round at least.
const ROUND_MS: f64 = 1.5;

/// An operator that is timed.
pub(crate) struct Timed {
    name: &'static str,
    scope: Scope,
    session: Session,
    /// Nanoseconds per element of every round.
    rounds: Vec<f64>,
}

impl Timed {
    /// Every slot is filled with elements within 0 and 1; attributes have their default values, or 1.
    pub(crate) fn new(executor: &Executor, info: &OpInfo) -> Result<Timed> {
        let schema = info.schema();
        let (mut program, mut scope, mut op) = (Program::new(), Scope::new(), OpDesc::new(schema.name));
        for (k, slot) in schema.inputs.iter().enumerate() {
            let name = format!("input {}", slot.name);
            op.inputs.set(slot.name, [declare(&mut program, &name, true)]);
            scope.set(&name, Tensor::from_vec([ELEMENTS], numbers(k))?);
        }
        for slot in schema.outputs {
            op.outputs.set(slot.name, [declare(&mut program, slot.name, false)]);
        }
        for attr in schema.attrs.iter().filter(|attr| attr.default.is_none()) {
            op.attrs.set(attr.name, Attr::F32(1.0));
        }
        program.root_mut().ops.push(op);
        let fetches: Vec<_> = schema.outputs.iter().map(|slot| slot.name).collect();
        let session = executor.prepare(&program, &mut scope, &[], &fetches)?;
        Ok(Timed { name: schema.name, scope, session, rounds: vec![] })
    }

    /// The operator's type.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Times one round of runs.
    pub(crate) fn round(&mut self) -> Result<()> {
        let (start, mut runs) = (Instant::now(), 0);
        while ms(start) < ROUND_MS {
            for _ in 0..RUNS {
                self.session.run(&mut self.scope)?;
            }
            runs += RUNS;
        }
        self.rounds.push(ms(start) * 1e6 / (runs * ELEMENTS) as f64);
        Ok(())
    }

    /// Median of the rounds: nanoseconds per element.
    pub(crate) fn ns(&self) -> f64 {
        median(self.rounds.clone())
    }
}

fn declare(program: &mut Program, name: &str, persistable: bool) -> Var {
    let var = program.var(name);
    let desc = VarDesc { persistable, ..VarDesc::new(DType::F32, Dims::from([ELEMENTS])) };
    program.root_mut().vars.insert(var, desc);
    var
}

/// Numbers within 0 and 1, others for every slot.
fn numbers(slot: usize) -> Vec<f32> {
    (1..=ELEMENTS).map(|i| (i as f32 * 0.618_034 + slot as f32 * 0.3).fract().max(0.01)).collect()
}
