//! Training on several ranks.

extern crate autobwd_core as autobwd;

mod accumulate;
mod collective;
mod data_parallel;
mod gradients;
mod operators;
mod shard_optimizer;
mod startup;
pub mod threads;

pub use accumulate::{Accumulation, accumulate};
pub use autobwd_core::Transport;
pub use data_parallel::data_parallel;
pub use operators::{
    CAllgather, CAllgatherGrad, CAllreduceSum, CAllreduceSumGrad, CBroadcast, CReducescatter,
    CReducescatterGrad, all_reduce_sum,
};
pub use shard_optimizer::{ShardedOptimizer, shard_optimizer};
pub use startup::{require_same_program, startup};
