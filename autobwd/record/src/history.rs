//! Reading of the lines of a record.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _},
};

use autobwd_core::{Error, ErrorKind, Result, tensor::open_file};

use crate::{
    chain::Chain,
    digest::Digest,
    folder::{LINES, PROGRAM, RecordFolder, checkpoint_file, fault, startup_file},
    line::{CheckpointFile, Header, Line, SCHEMA, Samples, StateHash, StepInputs, Table, TableRows},
};

/// The longest line, in bytes.
const LINE: u64 = 1 << 30;
/// The largest file of lines, in bytes.
const FILE: u64 = 1 << 40;

/// What the lines of a record say, up to a step or up to the first damage.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) header: Header,
    pub(crate) tables: Vec<SampleTable>,
    pub(crate) steps: Vec<StepInputs>,
    pub(crate) states: BTreeMap<u64, StateHash>,
    pub(crate) checkpoints: BTreeMap<u64, CheckpointFile>,
    /// Whether the last line says that the run is complete.
    pub(crate) is_finished: bool,
    /// The chain of these lines, and their bytes.
    pub(crate) chain: Chain,
    pub(crate) bytes: u64,
    /// The bytes of the samples of these lines.
    pub(crate) data_bytes: u64,
    /// Whether the last line is incomplete.
    pub(crate) is_torn: bool,
    /// The first damage.
    pub(crate) damage: Option<String>,
}

/// A table with its samples.
#[derive(Debug)]
pub(crate) struct SampleTable {
    pub(crate) table: Table,
    /// The bytes of a sample.
    pub(crate) size: usize,
    pub(crate) digests: Vec<Digest>,
    /// The positions in `data.bin`, if they are there.
    pub(crate) offsets: Vec<u64>,
}

/// Whether a header names the programs of its folder, and no other files.
fn has_own_files(header: &Header) -> bool {
    let mut startup = header.startup.iter().enumerate();
    header.program.file == PROGRAM && startup.all(|(index, program)| program.file == startup_file(index))
}

impl History {
    /// Reads the lines up to the lines of a step.
    ///
    /// # Errors
    /// The errors of the file system; a first line that is no header of this schema.
    pub(crate) fn read(folder: &RecordFolder, last_step: u64) -> Result<History> {
        let path = folder.path(LINES);
        let mut reader = BufReader::new(open_file(&path, FILE)?);
        let mut line = vec![];
        let mut next = |line: &mut Vec<u8>| {
            line.clear();
            let read = reader.by_ref().take(LINE).read_until(b'\n', line);
            read.map_err(|e| fault("read", &path, e))
        };
        next(&mut line)?;
        let refuse = |text: &str| Error::new(ErrorKind::Format, format!("`{}`: {text}", path.display()));
        if !line.ends_with(b"\n") {
            return Err(refuse("its first line is incomplete: the run was not recorded"));
        }
        let mut chain = Chain::default();
        let object = chain.follow(&line).map_err(|text| refuse(&format!("line 1 is damaged: {text}")))?;
        let header = match serde_json::from_str(&object) {
            Ok(Line::Header(header)) if header.schema == SCHEMA && has_own_files(&header) => header,
            Ok(Line::Header(header)) if header.schema == SCHEMA => {
                return Err(refuse("line 1 names programs outside the record"));
            }
            Ok(Line::Header(header)) => {
                let text = format!("a record of schema `{}`; this autobwd reads `{SCHEMA}`", header.schema);
                return Err(refuse(&text));
            }
            _ => return Err(refuse("line 1 is not the header of a record")),
        };
        let mut history = History {
            header,
            tables: vec![],
            steps: vec![],
            states: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            is_finished: false,
            chain,
            bytes: line.len() as u64,
            data_bytes: 0,
            is_torn: false,
            damage: None,
        };
        // Tables and samples of a step precede the line of the step, and count with it.
        let (mut waiting, mut waiting_bytes) = (vec![], 0);
        for number in 2_u64.. {
            let count = next(&mut line)? as u64;
            // The last line of a killed run may lack its end; nothing follows the end of a run.
            history.is_torn = count > 0 && !line.ends_with(b"\n");
            if count == 0 || history.is_torn && !history.is_finished {
                break;
            }
            let outcome = chain.follow(&line).and_then(|object| {
                serde_json::from_str(&object).map_err(|e| format!("it is no line of a record: {e}"))
            });
            let outcome = match outcome {
                Ok(Line::Step(step)) if step.step > last_step => break,
                Ok(line @ (Line::Table(_) | Line::Samples(_))) if !history.is_finished => {
                    waiting.push(line);
                    waiting_bytes += count;
                    continue;
                }
                Ok(line) => history.add(waiting.drain(..).chain([line])),
                Err(text) => Err(text),
            };
            if let Err(text) = outcome {
                history.damage = Some(format!("`{LINES}`: line {number} is damaged: {text}"));
                break;
            }
            (history.chain, history.bytes) = (chain, history.bytes + waiting_bytes + count);
            waiting_bytes = 0;
        }
        Ok(history)
    }

    /// The number of the last step.
    pub(crate) fn last_step(&self) -> u64 {
        self.steps.len() as u64
    }

    fn add(&mut self, lines: impl Iterator<Item = Line>) -> Result<(), String> {
        lines.into_iter().try_for_each(|line| self.add_line(line))
    }

    fn add_line(&mut self, line: Line) -> Result<(), String> {
        let last = self.last_step();
        if self.is_finished {
            return Err("the run has ended before it".into());
        }
        match line {
            Line::Header(_) => Err("it is a second header".into()),
            Line::Table(table) => self.add_table(table),
            Line::Samples(samples) => self.add_samples(samples),
            Line::Step(step) => {
                if step.step != last + 1 {
                    return Err(format!("step {} follows step {last}", step.step));
                }
                step.feeds.iter().chain(&step.set).try_for_each(|rows| self.check_rows(rows))?;
                self.steps.push(step);
                Ok(())
            }
            Line::State(state) => {
                if state.step != last || self.states.insert(last, state).is_some() {
                    return Err(format!("it is not the state after step {last}"));
                }
                Ok(())
            }
            Line::Checkpoint(checkpoint) => {
                let is_next = checkpoint.step == last && checkpoint.file == checkpoint_file(last);
                if !is_next || !self.states.contains_key(&last) {
                    return Err(format!("it is not the checkpoint of the state after step {last}"));
                }
                match self.checkpoints.insert(last, checkpoint) {
                    None => Ok(()),
                    Some(_) => Err(format!("step {last} has two checkpoints")),
                }
            }
            Line::End(end) => {
                self.is_finished = true;
                match end.steps == last && self.checkpoints.contains_key(&last) {
                    true => Ok(()),
                    false => Err(format!("it ends a run of {} steps after step {last}", end.steps)),
                }
            }
        }
    }

    fn add_table(&mut self, table: Table) -> Result<(), String> {
        let bytes = table.meta().and_then(|meta| meta.bytes());
        let size = bytes.ok_or_else(|| format!("table {} has samples of an unknown size", table.table))?;
        if table.table != self.tables.len() {
            return Err(format!("table {} follows {} tables", table.table, self.tables.len()));
        }
        self.tables.push(SampleTable { table, size, digests: vec![], offsets: vec![] });
        Ok(())
    }

    fn add_samples(&mut self, samples: Samples) -> Result<(), String> {
        let known = self.tables.get_mut(samples.table);
        let table = known.ok_or_else(|| format!("there is no table {}", samples.table))?;
        for digest in samples.sha256 {
            table.digests.push(digest);
            if table.table.stored {
                table.offsets.push(self.data_bytes);
                self.data_bytes = self.data_bytes.saturating_add(table.size as u64);
            }
        }
        Ok(())
    }

    fn check_rows(&self, rows: &TableRows) -> Result<(), String> {
        let known = self.tables.get(rows.table);
        let table = known.ok_or_else(|| format!("there is no table {}", rows.table))?;
        match rows.rows.as_slice().iter().find(|row| **row >= table.digests.len() as u64) {
            None => Ok(()),
            Some(row) => Err(format!("`{}` has no sample {row}", table.table.name)),
        }
    }
}
