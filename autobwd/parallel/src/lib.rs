//! Training on several ranks: processes, or threads of one process, that run one program on different data.
//!
//! Parallelism is a pass over programs. [`data_parallel`] inserts sums of gradients over all ranks into a training
//! step, [`shard_optimizer`] divides the state of the optimizer among them, and [`accumulate`] merges the gradients of
//! several batches on one rank. Sums are made in the order of ranks, so the results of n ranks are bit-identical to one
//! process that merges the same n batches.
//!
//! The inserted operators ([`CAllreduceSum`] and others, with the names of the reference) exchange data by the
//! [`Transport`] of their executor, which [`threads`] or the package `autobwd-mpi` implements.
//!
//! ```
//! use autobwd::{Builder, DType, Executor, Scope, Tensor};
//! use autobwd::parallel::{data_parallel, require_same_program, startup, threads};
//! use autobwd_ops::{Math, nn::Linear, optim::{Optimizer, Sgd}};
//!
//! let net = Builder::new();
//! let (x, y) = (net.input("x", DType::F32, &[-1, 2]), net.input("y", DType::F32, &[-1, 1]));
//! let loss = Linear::builder(&net, 2, 1).build().forward(&x).square_error(&y).mean();
//! Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
//! let (init, step) = (net.startup().program()?.clone(), data_parallel(&net.program()?, 2, 1 << 20)?);
//!
//! let weights = threads::run(2, |transport| {
//!     let (rank, mut scope) = (transport.rank(), Scope::new());
//!     require_same_program(&*transport, &step)?;
//!     let mut executor = Executor::with_threads(1).with_transport(transport);
//!     executor.run(&init, &mut scope, &[], &[])?;
//!     executor.run(&startup(&step, rank)?, &mut scope, &[], &[])?;
//!     for batch in 0..10 {
//!         // Each rank has data of its own.
//!         let x = Tensor::from_vec([1, 2], vec![batch as f32, rank as f32])?;
//!         let y = Tensor::from_vec([1, 1], vec![1.0_f32])?;
//!         executor.run(&step, &mut scope, &[("x", &x), ("y", &y)], &[])?;
//!     }
//!     Ok(scope.get("linear_0.w")?.to_f64s())
//! })?;
//! assert_eq!(weights[0], weights[1]);
//! # Ok::<(), autobwd::Error>(())
//! ```

extern crate autobwd_core as autobwd;

mod accumulate;
mod collective;
mod data_parallel;
mod gradients;
mod operators;
mod run_options;
mod shard_optimizer;
mod startup;
pub mod threads;

pub use accumulate::{Accumulation, accumulate};
pub use autobwd_core::Transport;
pub use data_parallel::data_parallel;
pub use operators::{
    CAllgather, CAllgatherGrad, CAllreduceSum, CAllreduceSumGrad, CBroadcast, CBroadcastGrad, CReduceSum,
    CReduceSumGrad, CReducescatter, CReducescatterGrad, all_reduce_sum,
};
pub use run_options::RunOptions;
#[doc(hidden)]
pub use run_options::{ended, run_rank};
pub use shard_optimizer::{ShardedOptimizer, shard_optimizer};
pub use startup::{require_same_program, startup};
