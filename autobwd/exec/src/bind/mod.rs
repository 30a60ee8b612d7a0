//! Binding of plans to memory: every slot gets its memory, and every instruction is proven sound.
//!
//! A bound block consists of instructions and their memory. From the bottom up: [`bound_block`], one step of a sub-block
//! ([`bound_step`]), steps of one shape ([`static_block`]), the loop over steps ([`step_loop`]), the kernel of an
//! operator with a sub-block ([`control_flow`]), segments that are planned at run time ([`segment`], [`dynamic`]), and
//! the [`binder`], which makes all of them from a plan.

pub(crate) mod binder;
pub(crate) mod bound_block;
pub(crate) mod bound_step;
mod control_flow;
mod copy;
mod dynamic;
mod dynamic_loop;
mod journal;
mod observed_kernel;
pub(crate) mod segment;
mod static_block;
mod step_loop;
