//! Files: bounded reading of regular files, and atomic replacement, which writes a temporary file in the folder of the
//! target, synchronises it and renames it.
//!
//! Symbolic links are followed, and permissions are kept. The next write to the same target removes the temporary files
//! of killed processes.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use crate::{Error, ErrorKind, Result};

/// The suffix of temporary files, `.<target>.<random>.autobwd-tmp`.
const SUFFIX: &str = ".autobwd-tmp";
/// Random characters in that name.
const RANDOM: usize = 6;
/// Bytes of the target's name in that name, which must not be too long for the file system.
const NAME: usize = 200;
/// The limit of consecutive symbolic links, as on Linux.
const LINKS: usize = 40;
/// Attempts to create a temporary file, since another process may remove one.
const ATTEMPTS: usize = 8;

/// The error of a file: what cannot be done, and why.
pub(super) fn failure(path: &Path, doing: &str, e: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("cannot {doing} `{}`: {e}", path.display()))
}

/// Opens a regular file of at most `limit` bytes for reading. Every reader of files begins here, so that none reads without
/// end, waits for another process, or takes memory for what a file merely claims.
///
/// # Errors
/// A folder, a pipe, a device or a socket; a file of more than `limit` bytes; errors of the file system. Each names the
/// path.
pub fn open_file(path: impl AsRef<Path>, limit: u64) -> Result<File> {
    let path = path.as_ref();
    let fault = |e: io::Error| failure(path, "read", &e).caused_by(e);
    let check = |found: fs::Metadata| match (found.is_file(), found.is_dir()) {
        (true, _) if found.len() > limit => Err(too_long(&format!("`{}`", path.display()), limit)),
        (true, _) => Ok(()),
        (false, true) => Err(failure(path, "read", "it is a folder")),
        (false, false) => Err(failure(path, "read", "it is a pipe or a device, not a file")),
    };
    // Before it is opened, which may wait for a writer of a pipe.
    check(fs::metadata(path).map_err(fault)?)?;
    let file = File::open(path).map_err(fault)?;
    check(file.metadata().map_err(fault)?)?;
    Ok(file)
}

/// The bytes of a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open_file`]; not enough memory.
pub fn read_file(path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let file = open_file(path, limit)?;
    let size = file.metadata().map_or(0, |found| found.len());
    // The file may grow while it is read.
    read_stream(file, size, limit, &format!("`{}`", path.display()))
}

/// The bytes of a stream, such as standard input, which `source` names in errors.
///
/// # Errors
/// More than `limit` bytes, which are not read; errors of the stream; not enough memory.
pub fn read_bounded(stream: impl Read, limit: u64, source: &str) -> Result<Vec<u8>> {
    read_stream(stream, 0, limit, source)
}

/// Exactly the next bytes of a stream, which `source` names in errors.
///
/// # Errors
/// Fewer bytes; errors of the stream; not enough memory.
pub fn read_exactly(stream: impl Read, bytes: u64, source: &str) -> Result<Vec<u8>> {
    let read = read_stream(stream.take(bytes), bytes, bytes, source)?;
    match bytes - read.len() as u64 {
        0 => Ok(read),
        missing => Err(Error::new(ErrorKind::Format, format!("{source} ends {missing} bytes early"))),
    }
}

/// At most `limit` bytes of a stream; memory for `expected` ones is reserved first.
fn read_stream(stream: impl Read, expected: u64, limit: u64, source: &str) -> Result<Vec<u8>> {
    let fault = |e: io::Error| Error::new(ErrorKind::Io, format!("cannot read {source}: {e}")).caused_by(e);
    let mut bytes = vec![];
    if usize::try_from(expected).map_or(true, |expected| bytes.try_reserve_exact(expected).is_err()) {
        let text = format!("{source}: cannot allocate {expected} bytes");
        return Err(Error::new(ErrorKind::OutOfMemory, text));
    }
    stream.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 > limit { Err(too_long(source, limit)) } else { Ok(bytes) }
}

fn too_long(source: &str, limit: u64) -> Error {
    Error::new(ErrorKind::Format, format!("{source} is longer than the {limit} bytes that are read"))
}

/// Writes a file so that its path always holds a complete file, the old or the new one, even if the process is killed
/// or the machine loses power: a temporary file in the same folder is written, synchronised and renamed, and then the
/// folder is synchronised.
///
/// Symbolic links are followed and stay links; the file keeps its permissions; a device or a pipe is written directly.
/// A killed process leaves a hidden temporary file named after the target; the next write to the same target removes
/// it.
///
/// # Errors
/// A missing folder, a path that is a folder, and other errors of the file system, with the path.
pub fn write_atomically(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    write_parts_atomically(path, [bytes])
}

/// As [`write_atomically`], of a file in several parts, one after the other.
///
/// # Errors
/// As there.
pub(super) fn write_parts_atomically<'a>(
    path: impl AsRef<Path>,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Result<()> {
    let path = path.as_ref();
    let mut parts = parts.into_iter();
    let fault = |e| fault(path, e);
    let target = WriteTarget::of(path)?;
    if let TargetKind::Device = target.kind {
        let mut device = File::options().write(true).open(&target.path).map_err(fault)?;
        return parts.try_for_each(|part| device.write_all(part)).map_err(fault);
    }
    let folder = folder_of(&target.path);
    let mut file = target.temporary().map_err(fault)?;
    parts.try_for_each(|part| file.write_all(part)).map_err(fault)?;
    if let TargetKind::File(before) = target.kind {
        file.as_file().set_permissions(before).map_err(fault)?;
    }
    file.as_file().sync_all().map_err(fault)?;
    let file = file.persist(&target.path).map_err(|e| fault(e.error))?;
    drop(file);
    sync_folder(folder).map_err(fault)
}

/// Checks that [`write_atomically`] can write a file, as far as this can be known: long work can be refused before it
/// starts. The path is unchanged.
///
/// # Errors
/// As [`write_atomically`].
pub fn check_writable(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    let target = WriteTarget::of(path)?;
    match target.kind {
        // Opening a pipe would wait for its reader.
        TargetKind::Device => Ok(()),
        _ => target.temporary().map(drop).map_err(|e| fault(path, e)),
    }
}

/// The error of the file system. Temporary names mean nothing to the caller, so only its kind is reported.
fn fault(path: &Path, e: io::Error) -> Error {
    failure(path, "write", e.kind()).caused_by(e)
}

/// What is to be written.
struct WriteTarget {
    /// The path after all symbolic links.
    path: PathBuf,
    kind: TargetKind,
}

enum TargetKind {
    New,
    /// A file with these permissions.
    File(fs::Permissions),
    /// A device or a pipe.
    Device,
}

impl WriteTarget {
    fn of(path: &Path) -> Result<WriteTarget> {
        let refuse = |text: String| failure(path, "write", text);
        let target = followed(path).ok_or_else(|| refuse("more than 40 symbolic links".into()))?;
        if target.file_name().is_none() {
            return Err(refuse("it names no file".into()));
        }
        let folder = folder_of(&target);
        if !folder.is_dir() {
            return Err(refuse(format!("there is no folder `{}`", folder.display())));
        }
        let kind = match fs::metadata(&target) {
            Ok(before) if before.is_dir() => return Err(refuse("it is a folder".into())),
            Ok(before) if before.is_file() => TargetKind::File(before.permissions()),
            Ok(_) => TargetKind::Device,
            Err(_) => TargetKind::New,
        };
        Ok(WriteTarget { path: target, kind })
    }

    /// A new temporary file in the folder of the target. Those that killed processes left are removed.
    fn temporary(&self) -> io::Result<tempfile::NamedTempFile> {
        let (name, folder) = (self.path.file_name().unwrap_or_default(), folder_of(&self.path));
        let mut prefix = OsString::from(".");
        prefix.push(short(&name.to_string_lossy()));
        prefix.push(".");
        remove_stale(folder, &prefix.to_string_lossy());
        temporary(folder, &prefix)
    }
}

/// The file that a path refers to, even if links lead to a missing one.
fn followed(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        match fs::read_link(&path) {
            Ok(link) => path = folder_of(&path).join(link),
            Err(_) => return Some(path),
        }
    }
    None
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn short(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME)]
}

/// A new temporary file, locked during the lifetime of its process.
fn temporary(folder: &Path, prefix: &OsString) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).suffix(SUFFIX).rand_bytes(RANDOM);
    for _ in 0..ATTEMPTS {
        let file = readable(&mut builder).tempfile_in(folder)?;
        // On file systems without locks, a temporary file is never locked, nor removed as stale.
        let _ = file.as_file().lock();
        // Another process may have removed it before it was locked.
        if file.path().exists() {
            return Ok(file);
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// Temporary files are private by default; the target must not be.
#[cfg(unix)]
fn readable<'a, 'b, 'c>(builder: &'a mut tempfile::Builder<'b, 'c>) -> &'a tempfile::Builder<'b, 'c> {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(fs::Permissions::from_mode(0o666))
}
#[cfg(not(unix))]
fn readable<'a, 'b, 'c>(builder: &'a mut tempfile::Builder<'b, 'c>) -> &'a tempfile::Builder<'b, 'c> {
    builder
}

/// Removes files left by processes that were killed while writing the same target. Failures are ignored.
fn remove_stale(folder: &Path, prefix: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(SUFFIX));
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if random.is_some_and(|random| random.len() == RANDOM)
            && is_file
            && let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Makes the new name durable.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some file systems do not support it.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        outcome => outcome,
    }
}
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
