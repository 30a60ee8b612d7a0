//! The messages of ONNX files. `onnx.rs` is generated from `onnx.proto` by `prost-build` 0.14 and checked in, so that no
//! build needs `protoc`. Its option `bytes([".onnx.TensorProto.raw_data"])` makes elements shared bytes, which are copied
//! from a file once.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::doc_overindented_list_items,
    clippy::enum_variant_names,
    clippy::large_enum_variant,
    dead_code
)]

include!("onnx.rs");
