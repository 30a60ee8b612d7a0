//! The start of a run on several ranks.

use autobwd_core::{
    DType, Error, ErrorKind, OpDesc, Program, Result, Transport, Var, VarDesc, operators::Increment,
};

use crate::{CBroadcast, collective::all_gather};

/// A program that gives all ranks the values of rank 0, to be run once on each rank, after the initialisation of
/// parameters or the load of a checkpoint: for everything that the step keeps between runs.
///
/// Seeds that the step counts, as [`Dropout`](https://docs.rs/autobwd-ops) does, are then moved apart, by 2^40 a rank,
/// so that every rank has masks of its own.
///
/// # Errors
/// A rank beyond 2^13.
pub fn startup(step: &Program, rank: usize) -> Result<Program> {
    let mut program = Program::new();
    let kept = step.root().vars.iter().filter(|(_, desc)| desc.persistable);
    for (var, desc) in kept {
        let value = program.var(step.name(*var));
        program.root_mut().vars.insert(value, VarDesc { gradient_of: None, ..desc.clone() });
        let start = start(step, *var, desc, value, rank)?;
        program.root_mut().ops.extend(start);
    }
    Ok(program)
}

/// The operators that start a value of the step, which is `value` in the program at the start: the copy of the value of
/// rank 0, moved apart if it is a seed.
pub(crate) fn start(
    step: &Program,
    var: Var,
    desc: &VarDesc,
    value: Var,
    rank: usize,
) -> Result<Vec<OpDesc>> {
    if rank >= 1 << 13 {
        return Err(Error::new(ErrorKind::Rank, format!("rank {rank} is too high: there are at most 8192")));
    }
    let copy = CBroadcast { x: value, out: value, ring_id: 0, root: 0, use_calc_stream: false };
    let mut ops = vec![copy.into()];
    if desc.dtype == DType::I64 && rank > 0 && is_seed(step, var) {
        ops.push(Increment { x: value, out: value, step: (rank as f64) * (1_u64 << 40) as f64 }.into());
    }
    Ok(ops)
}

/// Whether an operator reads a variable as its seed.
fn is_seed(step: &Program, var: Var) -> bool {
    let reads = |op: &OpDesc| op.inputs.get("Seed").contains(&var);
    step.blocks().iter().flat_map(|block| &block.ops).any(reads)
}

/// Checks that all ranks run the same program; to be called on each rank, before the first run.
///
/// # Errors
/// The numbers of ranks with another program than rank 0, on every rank.
pub fn require_same_program(transport: &dyn Transport, step: &Program) -> Result<()> {
    let mut fingerprints = vec![0_i64; transport.ranks()];
    all_gather(transport, &[step.fingerprint() as i64], &mut fingerprints)?;
    let different = (0..fingerprints.len()).filter(|rank| fingerprints[*rank] != fingerprints[0]);
    let different: Vec<_> = different.map(|rank| rank.to_string()).collect();
    if different.is_empty() {
        return Ok(());
    }
    let text = format!("ranks {} run another program than rank 0", different.join(", "));
    Err(Error::new(ErrorKind::Rank, text))
}
