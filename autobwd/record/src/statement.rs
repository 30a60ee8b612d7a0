//! The record as an in-toto statement, which tools for signatures sign.
//!
//! The format is version 1 of <https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md>.

use std::collections::BTreeMap;

use autobwd_core::{Error, ErrorKind, Result, tensor::read_file, tensor::write_atomically};
use serde::{Deserialize, Serialize};

use crate::{
    digest::Digest,
    folder::{LINES, RecordFolder, STATEMENT},
    history::History,
};

const TYPE: &str = "https://in-toto.io/Statement/v1";
/// The type of the predicate. It is no address.
const PREDICATE_TYPE: &str = "urn:autobwd:run-record:1";
/// The largest file, in bytes.
const LIMIT: u64 = 1 << 26;

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    ty: String,
    subject: Vec<Subject>,
    predicate_type: String,
    predicate: Predicate,
}

/// A file.
#[derive(PartialEq, Serialize, Deserialize)]
struct Subject {
    name: String,
    digest: BTreeMap<String, Digest>,
}

/// The summary of a record.
#[derive(PartialEq, Serialize, Deserialize)]
struct Predicate {
    schema: String,
    library: String,
    arithmetic: u32,
    /// The fingerprint of the program.
    program: String,
    notes: BTreeMap<String, String>,
    steps: u64,
    /// The chain of the last line.
    chain: Option<Digest>,
}

impl Statement {
    fn of(folder: &RecordFolder, history: &History) -> Result<Statement> {
        let header = &history.header;
        let subject = |name: &str, sha256| Subject {
            name: name.into(),
            digest: BTreeMap::from([("sha256".into(), sha256)]),
        };
        let mut subjects = vec![subject(LINES, Digest::of_file(&folder.path(LINES))?)];
        let programs = [&header.program].into_iter().chain(&header.startup);
        subjects.extend(programs.map(|program| subject(&program.file, program.sha256)));
        let last = history.checkpoints.last_key_value();
        subjects.extend(last.map(|(_, checkpoint)| subject(&checkpoint.file, checkpoint.sha256)));
        Ok(Statement {
            ty: TYPE.into(),
            subject: subjects,
            predicate_type: PREDICATE_TYPE.into(),
            predicate: Predicate {
                schema: header.schema.clone(),
                library: header.library.clone(),
                arithmetic: header.arithmetic,
                program: header.program.fingerprint.clone(),
                notes: header.notes.clone(),
                steps: history.last_step(),
                chain: history.chain.last(),
            },
        })
    }
}

/// Writes the statement of a finished record.
///
/// # Errors
/// The errors of the file system; lines that are damaged already.
pub(crate) fn write(folder: &RecordFolder) -> Result<()> {
    let statement = Statement::of(folder, &History::read(folder, u64::MAX)?)?;
    let path = folder.path(STATEMENT);
    let text = serde_json::to_vec_pretty(&statement).map_err(|e| {
        Error::new(ErrorKind::Format, format!("cannot write `{}`: {e}", path.display())).caused_by(e)
    })?;
    write_atomically(path, &text)
}

/// What is wrong with the statement of a record; the statement of an unfinished one may be missing.
///
/// # Errors
/// The errors of the file system for the files that it names.
pub(crate) fn damage(folder: &RecordFolder, history: &History) -> Result<Option<String>> {
    let path = folder.path(STATEMENT);
    if !path.exists() {
        return Ok(history.is_finished.then(|| format!("`{STATEMENT}` is missing")));
    }
    let found: Option<Statement> = serde_json::from_slice(&read_file(path, LIMIT)?).ok();
    let is_right = found == Some(Statement::of(folder, history)?);
    Ok((!is_right).then(|| format!("`{STATEMENT}` is not the statement of this record")))
}
