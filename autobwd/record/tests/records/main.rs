//! Records of small runs: confirmed, changed in one place and refused, and resumed.

mod changed_records;
mod confirmed_records;
mod refused_requests;
mod resumed_records;
mod support;
