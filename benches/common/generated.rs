//! Workspaces of generated crates in folders below `target/`, and cargo in them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use crate::{BenchResult, ms};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// How generated crates are compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    /// `--release`, or the dev profile.
    pub release: bool,
    /// Fat LTO with one codegen unit.
    pub fat_lto: bool,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Profile; 4] = [
        Profile { release: false, fat_lto: false },
        Profile { release: false, fat_lto: true },
        Profile { release: true, fat_lto: false },
        Profile { release: true, fat_lto: true },
    ];

    /// Cargo's folder for artefacts.
    pub fn folder(self) -> &'static str {
        if self.release { "release" } else { "debug" }
    }

    /// Name of the link-time optimisation.
    pub fn lto(self) -> &'static str {
        if self.fat_lto { "fat" } else { "off" }
    }
}

/// A workspace of generated crates, with a target folder of its own; earlier builds are kept.
pub struct Generated {
    folder: PathBuf,
}

impl Generated {
    /// An empty workspace `target/NAME` with these packages as members, and dependencies in the versions of this
    /// workspace.
    ///
    /// # Errors
    /// File system errors.
    pub fn new(name: &str, members: &[&str]) -> BenchResult<Generated> {
        let target =
            env::var_os("CARGO_TARGET_DIR").map_or_else(|| Path::new(ROOT).join("target"), PathBuf::from);
        let generated = Generated { folder: std::path::absolute(target)?.join(name) };
        for member in members {
            let old = generated.path(member);
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
        }
        generated.write("Cargo.toml", &format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n"))?;
        fs::copy(Path::new(ROOT).join("Cargo.lock"), generated.path("Cargo.lock"))?;
        Ok(generated)
    }

    /// A path within the workspace.
    pub fn path(&self, within: impl AsRef<Path>) -> PathBuf {
        self.folder.join(within)
    }

    /// An artefact of a profile.
    pub fn built(&self, profile: Profile, file: &str) -> PathBuf {
        self.path("target").join(profile.folder()).join(file)
    }

    /// Writes a file and creates its folders.
    ///
    /// # Errors
    /// File system errors.
    pub fn write(&self, path: &str, text: &str) -> BenchResult<()> {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap_or(&self.folder))?;
        Ok(fs::write(path, text)?)
    }

    /// Writes the manifest of a package that depends on `autobwd`; `more` is the rest of it, from further dependencies
    /// on.
    ///
    /// # Errors
    /// File system errors.
    pub fn manifest(&self, package: &str, more: &str) -> BenchResult<()> {
        let head = format!("[package]\nname = \"{package}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
        let autobwd = fs::canonicalize(Path::new(ROOT).join("autobwd"))?;
        let text = format!("{head}\n[dependencies]\nautobwd = {{ path = {autobwd:?} }}\n{more}");
        self.write(&format!("{package}/Cargo.toml"), &text)
    }

    /// Runs a cargo command with these arguments and returns its output.
    ///
    /// # Errors
    /// It cannot be started, or fails.
    pub fn cargo(&self, profile: Profile, command: &str, args: &[&str]) -> BenchResult<String> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(&self.folder).args([command, "--offline", "--quiet"]);
        cargo.args(profile.release.then_some("--release")).args(args);
        // No incremental builds, so that times are those of a whole crate.
        cargo.env("CARGO_TARGET_DIR", self.path("target")).env("CARGO_INCREMENTAL", "0");
        let prefix = if profile.release { "CARGO_PROFILE_RELEASE" } else { "CARGO_PROFILE_DEV" };
        cargo.env(format!("{prefix}_LTO"), profile.lto());
        if profile.fat_lto {
            cargo.env(format!("{prefix}_CODEGEN_UNITS"), "1");
        }
        output(&mut cargo)
    }

    /// Seconds of cargo after a change to a source file.
    ///
    /// # Errors
    /// As [`cargo`](Generated::cargo).
    pub fn seconds(&self, profile: Profile, source: &str, command: &str, args: &[&str]) -> BenchResult<f64> {
        fs::File::options()
            .append(true)
            .open(self.path(source))?
            .set_modified(std::time::SystemTime::now())?;
        let start = Instant::now();
        self.cargo(profile, command, args)?;
        Ok(ms(start) / 1e3)
    }
}

/// Runs a command and returns its output.
///
/// # Errors
/// It cannot be started, or fails.
pub fn output(command: &mut Command) -> BenchResult<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("{command:?} fails:\n{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
