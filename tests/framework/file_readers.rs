//! Readers of files: each reads regular files alone, of a bounded size, and none waits or reads without end.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use autobwd::{
    ErrorKind, Program, Result, Scope,
    tensor::{load_tensors, read_bounded},
};
use autobwd_data::{CsvColumns, CsvEncoder, TextUnit, TextWindows, load_npz};
use autobwd_models::Pretrained;

/// A reader, with the extension of its files.
type Reader = (&'static str, fn(&Path) -> Result<()>);

const READERS: [Reader; 12] = [
    ("json", |path| Program::load(path).map(drop)),
    ("safetensors", |path| load_tensors(path).map(drop)),
    ("safetensors", |path| Scope::new().load(path)),
    ("npz", |path| load_npz(path).map(drop)),
    ("csv", |path| CsvColumns::new().numbers("x", [0]).read(path).map(drop)),
    ("json", |path| CsvEncoder::load(path).map(drop)),
    ("txt", |path| TextWindows::read(path, TextUnit::Byte, 8).map(drop)),
    ("onnx", |path| autobwd_onnx::load(path).map(drop)),
    ("gguf", |path| Pretrained::open(path).load().map(drop)),
    ("pdmodel", |path| autobwd_paddle::load_program(path).map(drop)),
    ("pdmodel", |path| autobwd_paddle::load(path).map(drop)),
    ("so", |path| autobwd_xla::pjrt::Plugin::load(path).map(drop)),
];

#[test]
fn readers_refuse_pipes_devices_and_folders() {
    let folder = tempfile::tempdir().unwrap();
    for (extension, read) in READERS {
        let path = |name: &str| folder.path().join(name).with_extension(extension);
        let refused = |path: &Path, why: &str| {
            let e = read(path).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Io, "{e}");
            assert!(e.to_string().contains(why), "{e}");
        };
        fs::create_dir_all(path("folder")).unwrap();
        refused(&path("folder"), "it is a folder");
        #[cfg(unix)]
        {
            let (pipe, zeros) = (path("pipe"), path("zeros"));
            if !pipe.exists() {
                assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
                std::os::unix::fs::symlink("/dev/zero", &zeros).unwrap();
            }
            refused(&pipe, "it is a pipe or a device");
            refused(&zeros, "it is a pipe or a device");
        }
    }
}

#[test]
fn readers_refuse_oversized_files() {
    let folder = tempfile::tempdir().unwrap();
    // Plugins are mapped, not read.
    for (extension, read) in READERS.into_iter().filter(|(extension, _)| *extension != "so") {
        let path = folder.path().join("long").with_extension(extension);
        // It occupies no space.
        File::create(&path).and_then(|file| file.set_len(1 << 40)).unwrap();
        let e = read(&path).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Format, "{e}");
        assert!(e.to_string().contains("is longer than the"), "{e}");
    }
}

#[test]
fn streams_are_read_up_to_their_limit() -> Result<()> {
    assert_eq!(read_bounded(&b"abc"[..], 3, "the input")?, b"abc");
    let e = read_bounded(std::io::repeat(0), 1 << 20, "the input").unwrap_err();
    assert_eq!(e.to_string(), "the input is longer than the 1048576 bytes that are read");
    Ok(())
}
