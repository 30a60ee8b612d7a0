//! The framework over real operators: programs, backward parts, runs, and what is refused.

mod backward;
mod bad_input;
mod draw;
mod higher;
mod laws;
mod numeric;
mod overwritten;
mod plain;
mod programs;
mod promises;
mod registry;
mod running;
