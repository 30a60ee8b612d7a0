//! The data of a page, which the script reads as JSON.

use serde::Serialize;

use autobwd_core::Result;

use crate::{
    Page,
    layout::{places, rows},
    memory::{MemoryTimeline, memory},
    stories::stories,
    tables::{BlockData, OpData, Tables},
    tree::{TreeRow, tree},
};

/// The data of a page.
#[derive(Debug, Serialize)]
pub(crate) struct Data {
    title: String,
    names: Vec<String>,
    texts: Vec<String>,
    blocks: Vec<BlockData>,
    ops: Vec<OpData>,
    rows: Vec<TreeRow>,
    stories: Vec<(usize, Vec<usize>)>,
    memory: Option<MemoryTimeline>,
    /// The reason why there is no memory plan.
    no_memory: Option<String>,
    compared: bool,
}

impl Data {
    pub(crate) fn of(page: &Page<'_>) -> Result<Data> {
        page.program.check_structure()?;
        let mut tables = Tables::default();
        let places = places(page.program);
        let first = tables.program(page.program, &places);
        let mut all_rows = rows(page.program, &places, |(b, i)| first[b] + i);
        if let Some(old) = page.old {
            old.check_structure()?;
            tables.differences(old, page.program, &first, &mut all_rows);
        }
        let (memory, no_memory) = match page.feeds.map(|feeds| memory(page.program, feeds, &mut tables.texts))
        {
            Some(Ok(memory)) => (Some(memory), None),
            Some(Err(e)) => (None, Some(e.to_string())),
            None => (None, None),
        };
        let stories = stories(page.program, &mut tables.texts);
        let stories =
            stories.into_iter().map(|(var, lines)| (tables.var(page.program, var), lines)).collect();
        let rows = tree(page.program, &all_rows, &tables);
        let Tables { names, texts, ops, blocks } = tables;
        Ok(Data {
            title: page.title.to_string(),
            names: names.list,
            texts: texts.list,
            blocks,
            ops,
            rows,
            stories,
            memory,
            no_memory,
            compared: page.old.is_some(),
        })
    }
}
