//! Devices, and programs on them. The tests need a PJRT plugin for the CPU, whose path is in the environment variable
//! `AUTOBWD_PJRT_PLUGIN`; without it they say so and end.

#[path = "../common/mod.rs"]
mod common;
mod executor;
mod pjrt;
mod plugin;
mod program;
mod replicas;
mod sharding;
