#![doc = include_str!("../README.md")]

mod batch;
mod request;
mod response;
mod served_model;
mod server;
mod workers;

pub use server::{ServerOptions, router, serve};

/// The chapter of the book, compiled and run here: other packages have no web framework.
#[cfg(doctest)]
#[doc = include_str!("../../../autobwd/book/src/tutorials/serving.md")]
pub struct ServingTutorial;
