//! Where the feeds of a replay come from.

use autobwd_core::{Result, Tensor};

use crate::{
    history::History,
    line::{StepInputs, TableRows},
    sample_reader::{SampleReader, difference},
};

/// Feeds of a step, from outside a record.
pub(crate) type FeedFn<'f> = dyn FnMut(u64) -> Result<Vec<(String, Tensor)>> + 'f;

/// The samples of a record, and a function that returns the feeds if the record has only their hashes.
pub(crate) struct FeedSource<'a, 'f> {
    pub(crate) samples: SampleReader<'a>,
    pub(crate) elsewhere: Option<&'a mut FeedFn<'f>>,
}

impl FeedSource<'_, '_> {
    /// The feeds of a step, which have the recorded hashes.
    pub(crate) fn of_step(
        &mut self,
        history: &History,
        inputs: &StepInputs,
    ) -> Result<Result<Vec<(String, Tensor)>, String>> {
        let Some(elsewhere) = &mut self.elsewhere else {
            return inputs.feeds.iter().map(|rows| self.samples.read(rows)).collect();
        };
        let given = elsewhere(inputs.step)?;
        let of_rows = |rows: &TableRows| {
            let name = history.tables.get(rows.table).map_or("", |known| &known.table.name);
            match given.iter().find(|(given, _)| given == name) {
                Some((_, tensor)) => difference(history, rows, tensor),
                None => Some(format!("`{name}` is not among the feeds that are given")),
            }
        };
        Ok(match inputs.feeds.iter().find_map(of_rows) {
            Some(text) => Err(text),
            None => Ok(given),
        })
    }
}
