//! The messages of program files. `framework.rs` is generated from `framework.proto` by `prost-build` 0.14 and checked
//! in, so that no build needs `protoc`.

#![allow(missing_docs, unreachable_pub, clippy::doc_overindented_list_items, dead_code)]

include!("framework.rs");
