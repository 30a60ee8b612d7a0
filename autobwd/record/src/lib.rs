//! Records of training runs that can be verified.
//!
//! Results are a function of program, data, seeds and the version of the arithmetic
//! ([`ARITHMETIC_VERSION`](autobwd_core::ARITHMETIC_VERSION)). So a run can be replayed: [`RunRecord`] writes what goes into
//! each step, and hashes of what comes out; [`RecordedRun`] runs the steps again, all of them or random segments, on any
//! number of threads, and confirms or refuses the record. A refusal names the step and the values that differ.
//!
//! The records of several ranks are verified together ([`RecordedRun::verify_ranks`]). A record is of a run on the host: a
//! device of XLA computes with another arithmetic, so a replay refuses what a device has computed.
//!
//! [`RecordedRun::bisect`] finds the first step and operator at which two recorded runs differ, and
//! [`RecordedRun::why_nan`] the operator that makes the first NaN of a run.
//!
//! # Files
//!
//! A record is a folder:
//!
//! - `record.jsonl`: one JSON object a line, described below.
//! - `program.json`, `startup-K.json`: the program of a step, and the programs that made the values before the first
//!   step.
//! - `checkpoint-STEP.safetensors`: [checkpoints](autobwd_exec::Checkpoint), of step 0, of every n-th step, and of the last step.
//! - `data.bin`: the samples, each stored once. A sample is a row of a feed, a feed of rank 0, or a value of the scope that
//!   the caller has changed. Elements are little-endian.
//! - `statement.json`, of a finished run: an [in-toto statement](https://in-toto.io/Statement/v1) of `record.jsonl`, the
//!   programs and the last checkpoint, which tools for signatures sign.
//!
//! All hashes are SHA-256, in hexadecimal digits. The key `kind` of a line is one of these:
//!
//! - `header`: versions, the files of the programs with their hashes, `every` and `checkpoint_every`, notes, the names
//!   of small values that the program only reads (`settings`), and the hashes of large ones (`constants`).
//! - `table`: a table of samples, each of one name, dtype and shape.
//! - `samples`: the hashes of new samples of a table, in the order of `data.bin`.
//! - `step`: the samples that are fed in a step, by their positions in a table: `rows` of a stack, or one `row`. `set` has
//!   values of the scope that were changed before the step.
//! - `state`: the hash of the state after a step, and the first 16 digits of the hash of each value. The state consists of
//!   the values that the program writes, and of the settings, which have at most 1 KiB each. The hash of a value is the hash of its
//!   dtype and shape as text (`float32 [2, 3]`), a newline and its elements, with one NaN in place of all; the hash of the state is the hash of the JSON
//!   object of the names, sorted, with the hashes of the values.
//! - `checkpoint`: the file of a checkpoint, with its hash.
//! - `end`: the run is complete.
//!
//! The last key of a line is `chain`: the hash of the `chain` of the line before it, followed by the line's own object
//! without this key. So no line can be changed, removed or inserted without a change of all lines after it.

mod bisect;
mod bisection;
mod chain;
mod digest;
mod feed_source;
mod finite_trace;
mod folder;
mod history;
mod line;
mod nan_report;
mod operator_trace;
mod phrases;
mod program_place;
mod ranks;
mod record_comparison;
mod recorded_run;
mod recorder;
mod replay;
mod resume;
mod run_record;
mod sample_reader;
mod sample_store;
mod state;
mod statement;
mod stepped_run;
mod value_difference;
mod verification;
mod why_nan;

pub use bisection::{
    Bisection, ComparedValue, DifferenceSubject, OperatorDifference, RecordedDifference, StepDifference,
    UnreproducedRecord,
};
pub use nan_report::{
    FedSample, LearningRate, MagnitudeHistory, NanOperator, NanReport, NanStep, RangedValue,
};
pub use record_comparison::RecordComparison;
pub use recorded_run::RecordedRun;
pub use run_record::{RecordOptions, RunRecord};
pub use value_difference::ValueDifference;
pub use verification::{Refusal, SegmentOutcome, Segments, Verification, VerifiedSegment};
