//! Saved files: written atomically, through links, and only if they can be read again. For killed processes, see
//! `tests/crash_safety`.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use autobwd::{
    Attr, ErrorKind, OpDesc, Program, Result, Scope, Tensor,
    tensor::{load_tensors, save_tensors, write_atomically},
};

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

fn filled(value: f32) -> Result<Scope> {
    let mut scope = Scope::new();
    scope.set("w", Tensor::from_vec([200_000], vec![value; 200_000])?);
    Ok(scope)
}

#[test]
fn only_leftovers_of_killed_processes_are_removed() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let others =
        [".w.abcdef.tmp", ".w.abcdefg.autobwd-tmp", ".w.x.abcdef.autobwd-tmp", "w.abcdef.autobwd-tmp"];
    for name in others.iter().chain(&[".w.abcdef.autobwd-tmp"]) {
        fs::write(at(name), "half").unwrap();
    }
    // This file is still being written.
    fs::write(at(".w.locked.autobwd-tmp"), "half").unwrap();
    let locked = fs::File::open(at(".w.locked.autobwd-tmp")).unwrap();
    locked.lock().unwrap();
    write_atomically(at("w"), b"whole")?;
    let mut expected = others.to_vec();
    expected.extend([".w.locked.autobwd-tmp", "w"]);
    expected.sort_unstable();
    assert_eq!(names_in(folder.path()), expected);
    locked.unlock().unwrap();
    write_atomically(at("w"), b"whole")?;
    assert!(!at(".w.locked.autobwd-tmp").exists());
    // A name of maximal length.
    let long = "x".repeat(255);
    write_atomically(at(&long), b"whole")?;
    assert_eq!(fs::read(at(&long)).unwrap(), b"whole");
    Ok(())
}

#[test]
fn threads_saving_one_file_do_not_interfere() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    thread::scope(|scope| {
        for byte in b'a'..b'e' {
            let path = &path;
            scope.spawn(move || (0..20).try_for_each(|_| write_atomically(path, &[byte; 5000])).unwrap());
        }
    });
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.len() == 5000 && bytes.iter().all(|byte| *byte == bytes[0]));
    assert_eq!(names_in(folder.path()), ["w"]);
    Ok(())
}

#[cfg(unix)]
#[test]
fn links_and_permissions_are_preserved() -> Result<()> {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("models")).unwrap();
    fs::write(at("models/real"), "old").unwrap();
    fs::set_permissions(at("models/real"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("models/real", at("latest")).unwrap();
    symlink(at("latest"), at("newest")).unwrap();
    symlink("models/new", at("dangling")).unwrap();
    symlink("round", at("round")).unwrap();
    filled(1.0)?.save(at("newest"))?;
    for link in ["latest", "newest"] {
        assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
        assert_eq!(load_tensors(at(link))?[0].1.numel(), 200_000);
    }
    assert_eq!(fs::metadata(at("models/real")).unwrap().permissions().mode() & 0o777, 0o640);
    write_atomically(at("dangling"), b"whole")?;
    assert_eq!(fs::read(at("models/new")).unwrap(), b"whole");
    assert!(fs::symlink_metadata(at("dangling")).unwrap().is_symlink());
    let e = write_atomically(at("round"), b"").unwrap_err().to_string();
    assert!(e.ends_with("round`: more than 40 symbolic links"), "{e}");
    // Devices are written to, not replaced.
    write_atomically("/dev/null", b"gone")?;
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    if Path::new("/dev/full").exists() {
        assert_eq!(write_atomically("/dev/full", b"too much").unwrap_err().kind(), ErrorKind::Io);
    }
    Ok(())
}

#[test]
fn write_errors_name_path_and_reason() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let told = |path: PathBuf| write_atomically(path, b"").unwrap_err().to_string();
    let missing = told(at("no/such/w"));
    let expected = format!(
        "cannot write `{}`: there is no folder `{}`",
        at("no/such/w").display(),
        at("no/such").display()
    );
    assert_eq!(missing, expected);
    assert!(told(folder.path().into()).ends_with("`: it is a folder"));
    assert!(told(PathBuf::new()).ends_with("`: it names no file"));
    assert!(told(at("..")).ends_with("`: it names no file"));
    fs::write(at("file"), "").unwrap();
    let e = told(at("file/w"));
    assert!(e.contains("file/w`: there is no folder"), "{e}");
    Ok(())
}

#[test]
fn saved_tensors_can_be_loaded() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let one = Tensor::scalar(1.0_f32)?;
    let save = |names: &[&str]| save_tensors(&path, names.iter().map(|name| (*name, &one)));
    let notes = save(&["w", "__metadata__"]).unwrap_err().to_string();
    assert!(
        notes.ends_with("the safetensors format reserves the name `__metadata__`: rename the value"),
        "{notes}"
    );
    let twice = save(&["a", "b", "a"]).unwrap_err().to_string();
    assert!(twice.ends_with("two tensors have the name `a`"), "{twice}");
    assert!(!path.exists());
    let strange = ["", "\"", "\\u0000", "\u{0}", "a\nb", "é", "__metadata__ ", "null", "{}"];
    save(&strange)?;
    let mut names: Vec<String> = load_tensors(&path)?.into_iter().map(|(name, _)| name).collect();
    let mut expected = strange.map(String::from);
    names.sort();
    expected.sort();
    assert_eq!(names, expected);
    save(&[])?;
    assert_eq!(load_tensors(&path)?.len(), 0);
    Ok(())
}

#[test]
fn program_over_the_read_limit_is_not_written() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program.json");
    let mut program = Program::new();
    let text = "x".repeat(Program::FILE_LIMIT as usize);
    program.root_mut().ops.push(OpDesc::new("note").attr("text", Attr::Str(text)));
    let e = program.save(&path).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Format);
    assert!(e.message().contains(" bytes are more than the limit of 134217728"), "{e}");
    assert!(!path.exists());
    Ok(())
}
