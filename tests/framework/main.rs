//! Tests of the framework with real operators: programs, backward parts, runs, errors.

mod accepted;
mod arrays;
mod attacks;
mod attributes;
mod author_code;
mod authors;
mod backward;
mod bad_input;
mod builder_panics;
mod checker;
mod checkpoints;
mod checksums;
mod commit;
mod constants;
mod control;
mod detach;
mod division;
mod documents;
mod draw;
mod edges;
mod exactness;
mod explain;
mod failures;
mod feeds;
mod files;
mod finite;
pub mod forms;
mod formulas;
mod fusion;
mod growing;
mod higher;
mod hostile;
mod identifiers;
mod images;
mod kinks;
mod laws;
mod layers;
mod linear_time;
mod logs;
mod lost_gradients;
mod messages;
mod mistakes;
mod monitor;
mod mutations;
mod net;
mod net_bad_input;
mod net_laws;
mod net_missing;
mod net_no_steps;
mod net_pictures;
mod norms;
mod numbers;
mod numeric;
mod optimizer_state;
mod outer;
mod overwritten;
mod parallel;
mod pictures;
mod plain;
mod predictor;
mod programs;
mod promises;
mod public_interface;
mod readers;
mod recompute;
mod recompute_control_flow;
mod recurrent;
mod references;
mod registry;
mod result_dtypes;
mod resume;
mod running;
mod scratch;
mod seeds;
mod selection;
mod shape_rules;
mod shared_steps;
mod sizes;
mod sparse;
mod sparse_control;
mod sparse_indices;
mod special_values;
mod structure;
mod tape;
mod tape_control;
mod tape_history;
mod tape_laws;
mod tape_models;
mod tape_values;
mod ties;
mod times;
mod typed;
mod unrolled;
mod updates;
mod variable_names;
mod wide;
mod words;

use autobwd_tests::compare;

#[global_allocator]
static ALLOCATOR: autobwd::check::CountingAllocator = autobwd::check::CountingAllocator;

/// Whether an operator is from the core or from `ops`.
fn is_of_library(info: &autobwd::OpInfo) -> bool {
    info.crate_name() == "autobwd-ops" || info.schema().file.contains("/operators/")
}
