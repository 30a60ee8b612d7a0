//! The framework over real operators: programs, backward parts, runs, and what is refused.

mod backward;
mod bad_input;
mod programs;
mod random_programs;
mod recompute;
mod registry;
mod running;
