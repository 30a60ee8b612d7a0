//! Records of small runs: confirmed, changed in one place and refused, and resumed.

mod bisected_records;
mod changed_records;
mod confirmed_records;
mod nan_sources;
mod random_changes;
mod ranks;
mod refused_requests;
mod resumed_records;
mod rounding;
mod support;
