//! The framework over real operators: programs, backward parts, runs, and what is refused.

mod backward;
mod bad_input;
mod numeric;
mod overwritten;
mod programs;
mod promises;
mod random_programs;
mod registry;
mod running;
mod sparse;
