//! External data: files that claim more than there is, that wait, or that never end.

mod graphs;

use std::{fs::File, path::Path, process::Command};

use autobwd_onnx::load;
use graphs::{
    graph, model, node,
    proto::{StringStringEntryProto, TensorProto, tensor_proto::DataLocation},
    value,
};

/// The error of a model whose weights of these dimensions are in a file of its folder.
fn refused(folder: &Path, location: &str, dims: &[i64]) -> String {
    let weight = TensorProto {
        name: Some("w".into()),
        dims: dims.to_vec(),
        data_type: Some(1),
        data_location: Some(DataLocation::External as i32),
        external_data: vec![StringStringEntryProto {
            key: Some("location".into()),
            value: Some(location.into()),
        }],
        ..TensorProto::default()
    };
    let nodes = vec![node("Add", &["x", "w"], &["y"])];
    let graph = graph(&[value("x", &[4])], &["y"], nodes, vec![weight]);
    let path = folder.join("model.onnx");
    std::fs::write(&path, model(graph)).unwrap();
    load(&path).unwrap_err().to_string()
}

#[test]
fn sizes_that_files_claim_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    // A terabyte that occupies no space.
    File::create(folder.path().join("sparse")).and_then(|file| file.set_len(1 << 40)).unwrap();
    let e = refused(folder.path(), "sparse", &[1 << 38]);
    assert!(e.contains("external data in `sparse`: more than the 17179869184 bytes"), "{e}");
    let e = refused(folder.path(), "sparse", &[1 << 60]);
    assert!(e.contains("w"), "{e}");
}

#[cfg(unix)]
#[test]
fn pipes_devices_and_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap().success());
    let e = refused(folder.path(), "pipe", &[4]);
    assert!(e.contains("it is a pipe or a device, not a file"), "{e}");
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    let e = refused(folder.path(), "folder", &[4]);
    assert!(e.contains("it is a folder"), "{e}");
}
