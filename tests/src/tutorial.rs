//! Tutorials as tests: their programs run in a folder with their data, and print what the tutorials say.

use std::{env, fs, path::PathBuf, sync::Mutex};

use tempfile::TempDir;

static PRINTED: Mutex<String> = Mutex::new(String::new());

/// Adds a line to what the program has printed.
pub fn print_line(line: &str) {
    std::println!("{line}");
    if let Ok(mut printed) = PRINTED.lock() {
        *printed += line;
        printed.push('\n');
    }
}

/// In place of the macro of the standard library.
#[macro_export]
macro_rules! tutorial_println {
    ($($arguments:tt)*) => { $crate::tutorial::print_line(&format!($($arguments)*)) };
}
pub use tutorial_println as println;

/// A file of the repository.
fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Makes a new folder the current one, with copies of these files of the repository. Those that end in `.gz` are unpacked.
pub fn enter_folder(files: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for path in files.iter().copied() {
        let bytes = fs::read(file(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        let name = path.rsplit('/').next().unwrap_or(path);
        let (name, bytes) = match name.strip_suffix(".gz") {
            Some(name) => (name, unpacked(&bytes)),
            None => (name, bytes),
        };
        fs::write(folder.path().join(name), bytes).expect("a file in a temporary folder");
    }
    env::set_current_dir(&folder).expect("a temporary folder");
    folder
}

fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut unpacked = vec![];
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(bytes), &mut unpacked).expect("a gzip file");
    unpacked
}

/// Checks that the first block of text in a tutorial is what the program has printed.
pub fn assert_printed(tutorial: &str) {
    let page =
        fs::read_to_string(file(&format!("autobwd/book/src/tutorials/{tutorial}"))).expect("a tutorial");
    let expected = page.split("\n```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let printed = PRINTED.lock().expect("no other thread prints").clone();
    assert_eq!(Some(printed.as_str()), expected, "{tutorial} prints\n{printed}");
}
