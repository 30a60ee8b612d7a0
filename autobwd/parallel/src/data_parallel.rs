//! Data parallelism: ranks train one model on different examples, and average the gradients.

use autobwd_core::{
    Error, ErrorKind, OpDesc, OpInfoMap, Origin, Program, Result, VarKind, verify::require_valid,
};

use crate::{
    CAllreduceSum,
    gradients::{ParameterGradient, divide, find, insert},
};

/// The step of one rank for a training step: gradients of parameters become the mean over all ranks.
///
/// Gradients are divided by `ranks` where the backward pass starts, and summed over all ranks ([`CAllreduceSum`]) as
/// soon as they are complete. Gradients of up to `bucket_bytes` are exchanged together; a larger one alone. Sums are
/// made in the order of ranks: the results of a step are bit-identical on every rank, and to one process that
/// [accumulates](crate::accumulate) the same batches in that order.
///
/// ```
/// use autobwd::{Builder, DType, parallel::data_parallel};
/// use autobwd_ops::{Init, Math, optim::{Optimizer, Sgd}};
///
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F32, &[2], |w| Init::Constant(1.0).emit(w, 0));
/// let loss = (net.input("x", DType::F32, &[-1, 2]) * &w).mean();
/// Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
/// let step = data_parallel(&net.program()?, 2, 1 << 20)?;
/// assert!(step.to_string().contains("w@GRAD = c_allreduce_sum(X=w@GRAD, nranks=2"));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// Start with [`startup`](crate::startup), and run as one of the ranks
/// ([`Executor::with_transport`](autobwd_exec::Executor::with_transport)). Row-sparse gradients are exchanged as rows.
///
/// A loss that is a mean over the batch stays one if all ranks have batches of one size. What a step computes from its
/// own batch alone differs between ranks: the loss that it fetches, and the running statistics of batch normalization
/// (a checkpoint has the statistics of the rank that writes it).
///
/// # Errors
/// An invalid program; one without gradients of parameters, or with further gradients computed from them; no ranks.
pub fn data_parallel(program: &impl AsRef<Program>, ranks: usize, bucket_bytes: usize) -> Result<Program> {
    let program = program.as_ref();
    let ops = OpInfoMap::linked()?;
    require_valid(ops, program)?;
    let nranks = nranks(ranks)?;
    let mut program = program.clone();
    let gradients = find(&program)?;
    divide(&mut program, ranks)?;
    sum_over_ranks(&mut program, gradients, nranks, bucket_bytes);
    require_valid(ops, &program)?;
    Ok(program)
}

/// The number of ranks as attributes have it.
pub(crate) fn nranks(ranks: usize) -> Result<i32> {
    let number = i32::try_from(ranks).ok().filter(|ranks| *ranks > 0);
    number.ok_or_else(|| {
        Error::new(ErrorKind::Rank, format!("{ranks} ranks are not possible; give from 1 to {}", i32::MAX))
    })
}

/// Inserts the sums of gradients over all ranks.
pub(crate) fn sum_over_ranks(
    program: &mut Program,
    gradients: Vec<ParameterGradient>,
    nranks: i32,
    bucket_bytes: usize,
) {
    let sum = |bucket: &[ParameterGradient]| -> (usize, Vec<OpDesc>) {
        let x: Vec<_> = bucket.iter().map(|gradient| gradient.gradient).collect();
        let sum = CAllreduceSum {
            out: x.clone(),
            x,
            ring_id: 0,
            nranks,
            use_calc_stream: false,
            use_model_parallel: false,
        };
        let sum = OpDesc { origin: Origin::AllReduce, ..sum.into() };
        (bucket.iter().map(|gradient| gradient.last).max().unwrap_or(0), vec![sum])
    };
    let mut behind: Vec<_> = buckets(gradients, bucket_bytes).iter().map(|bucket| sum(bucket)).collect();
    behind.sort_by_key(|(at, _)| *at);
    insert(program, behind);
}

/// Gradients that are exchanged together, in the order in which they are complete: dense ones of one dtype.
fn buckets(gradients: Vec<ParameterGradient>, bytes: usize) -> Vec<Vec<ParameterGradient>> {
    let mut buckets: Vec<Vec<ParameterGradient>> = vec![];
    // By dtype, the bucket that is being filled.
    let mut open: Vec<usize> = vec![];
    for gradient in gradients {
        let filling = open.iter().position(|i| buckets[*i][0].dtype == gradient.dtype);
        let alone = gradient.kind != VarKind::Tensor;
        match filling.filter(|_| !alone) {
            Some(place) => {
                let bucket = &mut buckets[open[place]];
                let filled: usize = bucket.iter().map(|gradient| gradient.bytes).sum();
                if filled.saturating_add(gradient.bytes) <= bytes {
                    bucket.push(gradient);
                    continue;
                }
                open[place] = buckets.len();
            }
            None if !alone => open.push(buckets.len()),
            None => {}
        }
        buckets.push(vec![gradient]);
    }
    buckets
}
