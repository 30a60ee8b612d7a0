//! Records of runs, and their differences, as plain data: the viewer reads no records.

use serde::Serialize;

/// The most states of a record in a page; every n-th of more states is kept.
const STATES: usize = 1000;

/// The record of a run, as a report shows it. `autobwd::exec::record` reads and verifies records.
///
/// [`RunReport::add_record`](crate::RunReport::add_record) has an example.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReportedRecord {
    /// What the header says, by name: the program, versions, notes.
    pub facts: Vec<(String, String)>,
    /// The number of the last step.
    pub steps: u64,
    /// Whether the run is complete; otherwise it was killed, or is running.
    pub is_finished: bool,
    /// The steps with a hash of the state after them, and the hashes.
    pub states: Vec<(u64, String)>,
    /// The steps with a checkpoint after them, and whether it is there.
    pub checkpoints: Vec<(u64, bool)>,
    /// The segments that a verification has replayed.
    pub segments: Vec<ReportedSegment>,
    /// What is damaged, one sentence each.
    pub damages: Vec<String>,
    /// What is missing, one sentence each.
    pub warnings: Vec<String>,
}

/// A part of a run that a verification has replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReportedSegment {
    /// The step after which it starts.
    pub after: u64,
    /// Its last step.
    pub last: u64,
    /// The result.
    pub verdict: SegmentVerdict,
    /// The sentence of the result.
    pub text: String,
}

/// The result of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentVerdict {
    /// The replay has the recorded hashes.
    Confirmed,
    /// The replay has other hashes.
    Refused,
    /// The segment cannot be replayed.
    Unverifiable,
}

/// Where two recorded runs start to differ.
///
/// [`RunReport::add_difference`](crate::RunReport::add_difference) has an example.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReportedDifference {
    /// The names of the records.
    pub records: [String; 2],
    /// The number of states that were compared; 0 if the runs have nothing in common.
    pub compared_states: usize,
    /// The last step after which the states are equal.
    pub last_equal_state: u64,
    /// The first step after which the states differ.
    pub first_different_state: Option<u64>,
    /// What differs, one sentence each.
    pub sentences: Vec<String>,
    /// The step at which the runs start to differ, if a bisection has found it.
    pub step: Option<u64>,
    /// What a bisection has found, in lines; empty without one.
    pub bisection: String,
}

/// A record with its name.
#[derive(Clone, Debug, Serialize)]
pub(super) struct NamedRecord {
    name: String,
    #[serde(flatten)]
    record: ReportedRecord,
    /// The number of states; the page may have fewer.
    all_states: usize,
}

impl NamedRecord {
    pub(super) fn new(name: &str, mut record: ReportedRecord) -> NamedRecord {
        let all_states = record.states.len();
        let (every, last) = (all_states.div_ceil(STATES).max(1), record.states.last().cloned());
        record.states = record.states.into_iter().step_by(every).collect();
        if record.states.last() != last.as_ref() {
            record.states.extend(last);
        }
        NamedRecord { name: name.into(), record, all_states }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
