//! Examples in rows of one length.

use std::collections::BTreeSet;

use autobwd::{Error, ErrorKind, Result, Tensor};
use autobwd_data::TensorDataset;

use super::{Example, FineTuning, faults, loss::IGNORED};

/// What the rows of a model hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    /// Texts, with the next token of each as its label, and the position of each token in its text.
    NextTokens,
    /// A text, with a label for each token, and whether it is a token.
    Tokens,
    /// A text with a class, and whether each token is one.
    Classes,
}

impl RowKind {
    /// The input of the model next to `input_ids`.
    pub(super) fn second_input(self) -> &'static str {
        if self == RowKind::NextTokens { "position_ids" } else { "attention_mask" }
    }
}

/// What a model can read and learn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The largest number of tokens of a text.
    pub(super) positions: Option<usize>,
    /// The number of tokens that there are.
    pub(super) vocabulary: i64,
    /// The number of logits of a text or a token.
    pub(super) classes: i64,
}

/// Rows of examples, with the same number of elements in each.
#[derive(Debug)]
pub(super) struct Rows {
    kind: RowKind,
    pub(super) length: usize,
    /// The numbers of the examples in each row.
    rows: Vec<Vec<usize>>,
    examples: Vec<Example>,
}

impl Rows {
    /// Puts examples into rows, whose number is a multiple of `multiple`: the last ones may be empty.
    ///
    /// # Errors
    /// No examples; one list of all that do not fit into a row.
    pub(super) fn new(
        tuning: &FineTuning,
        kind: RowKind,
        mut examples: Vec<Example>,
        limits: &Limits,
        multiple: usize,
    ) -> Result<Rows> {
        if examples.is_empty() {
            return Err(Error::new(ErrorKind::Data, "there are no examples"));
        }
        let longest = examples.iter().map(|example| example.tokens.len()).max().unwrap_or(1);
        let bound = limits.positions.unwrap_or(usize::MAX);
        let length = tuning.length.unwrap_or(longest.min(if tuning.is_truncating { bound } else { longest }));
        if length > bound {
            let text = format!(
                "rows of {length} tokens are longer than the {bound} positions of the model: give a shorter length, and \
                 cut longer examples"
            );
            return Err(Error::new(ErrorKind::Data, text));
        }
        let mut faults = vec![];
        for (i, example) in examples.iter_mut().enumerate() {
            if tuning.is_truncating {
                truncate(&mut example.tokens, kind, length);
                if kind != RowKind::Classes {
                    truncate(&mut example.labels, kind, length);
                }
            }
            let fault = fault(example, kind, length, limits);
            faults.extend(fault.map(|fault| format!("example {}: {fault}", i + 1)));
        }
        faults::require_none(faults, "the examples do not fit")?;
        let mut rows = match tuning.is_packing && kind == RowKind::NextTokens {
            true => packed(&examples, length),
            false => (0..examples.len()).map(|i| vec![i]).collect(),
        };
        rows.resize(rows.len().next_multiple_of(multiple), vec![]);
        Ok(Rows { kind, length, rows, examples })
    }

    /// How many rows there are, examples, tokens of these, and labels that count.
    pub(super) fn counts(&self) -> [usize; 4] {
        let tokens = self.examples.iter().map(|example| example.tokens.len()).sum();
        let counted = self.examples.iter().map(|example| counted(example, self.kind)).sum();
        [self.rows.len(), self.examples.len(), tokens, counted]
    }

    /// The rows as the feeds of a model: int64 `[rows, length]`; classes are `[rows]`.
    ///
    /// # Errors
    /// Memory runs out.
    pub(super) fn dataset(&self) -> Result<TensorDataset> {
        let mut parts: [Vec<i64>; 3] = Default::default();
        for row in &self.rows {
            parts.iter_mut().zip(self.row(row)).for_each(|(part, row)| part.extend(row));
        }
        let [ids, second, labels] = parts;
        let dims = [self.rows.len(), self.length];
        let labels = match self.kind {
            RowKind::Classes => Tensor::from_vec([self.rows.len()], labels)?,
            _ => Tensor::from_vec(dims, labels)?,
        };
        TensorDataset::new([
            ("input_ids", Tensor::from_vec(dims, ids)?),
            (self.kind.second_input(), Tensor::from_vec(dims, second)?),
            ("labels", labels),
        ])
    }

    /// The tokens of a row, what the second input says of them, and their labels.
    fn row(&self, row: &[usize]) -> [Vec<i64>; 3] {
        let (mut ids, mut second, mut labels) = (vec![], vec![], vec![]);
        for example in row.iter().map(|i| &self.examples[*i]) {
            let count = example.tokens.len();
            ids.extend(&example.tokens);
            match self.kind {
                RowKind::NextTokens => {
                    second.extend(0..count as i64);
                    labels.extend(example.labels.iter().skip(1));
                    labels.push(IGNORED);
                }
                RowKind::Tokens | RowKind::Classes => {
                    second.resize(count, 1);
                    labels.extend(&example.labels);
                }
            }
        }
        // Padding is a text of its own, or no text.
        let padding = (self.length - ids.len()) as i64;
        match self.kind {
            RowKind::NextTokens => second.extend(0..padding),
            RowKind::Tokens | RowKind::Classes => second.resize(self.length, 0),
        }
        ids.resize(self.length, 0);
        labels.resize(if self.kind == RowKind::Classes { 1 } else { self.length }, IGNORED);
        [ids, second, labels]
    }
}

/// Cuts a text. The token that closes the text of an encoder stays.
fn truncate(tokens: &mut Vec<i64>, kind: RowKind, length: usize) {
    if tokens.len() > length {
        let last = tokens.last().copied();
        tokens.truncate(length);
        if kind != RowKind::NextTokens
            && let (Some(end), Some(last)) = (tokens.last_mut(), last)
        {
            *end = last;
        }
    }
}

/// The number of labels that count.
fn counted(example: &Example, kind: RowKind) -> usize {
    // Nothing comes before the first token of a text.
    let skipped = usize::from(kind == RowKind::NextTokens);
    example.labels.iter().skip(skipped).filter(|label| **label != IGNORED).count()
}

/// What is wrong with an example.
fn fault(example: &Example, kind: RowKind, length: usize, limits: &Limits) -> Option<String> {
    let Example { tokens, labels } = example;
    let is_class = kind == RowKind::Classes;
    if tokens.len() > length {
        return Some(format!("{} tokens are more than the {length} of a row", tokens.len()));
    }
    if labels.len() != if is_class { 1 } else { tokens.len() } {
        let wanted = if is_class { "one class" } else { "a label for each token" };
        return Some(format!("{wanted} is needed, not {} labels for {} tokens", labels.len(), tokens.len()));
    }
    let Limits { vocabulary, classes, .. } = *limits;
    if let Some(token) = tokens.iter().find(|token| !(0..vocabulary).contains(*token)) {
        return Some(format!("the model has {vocabulary} tokens, and no token {token}"));
    }
    let is_unknown = |label: &&i64| **label != IGNORED && !(0..classes).contains(*label);
    match labels.iter().find(is_unknown) {
        Some(label) => Some(format!("the head has {classes} classes, and no class {label}")),
        None if tokens.is_empty() => Some("it is empty".into()),
        None if kind == RowKind::Tokens && labels == tokens => Some(
            "no token is hidden, so that there is nothing to learn: mask some (`--mask` of the command)"
                .into(),
        ),
        None if counted(example, kind) == 0 => Some("none of its tokens in the row is learned".into()),
        None => None,
    }
}

/// Examples in as few rows as a greedy rule finds: the longest first, each into the row with the least room that is
/// enough (best-fit decreasing).
fn packed(examples: &[Example], length: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..examples.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(examples[*i].tokens.len()));
    let (mut rows, mut room): (Vec<Vec<usize>>, BTreeSet<(usize, usize)>) = Default::default();
    for i in order {
        let needed = examples[i].tokens.len();
        let found = room.range((needed, 0)..).next().copied();
        let (left, row) = found.unwrap_or((length, rows.len()));
        match found {
            Some(entry) => {
                room.remove(&entry);
                rows[row].push(i);
            }
            None => rows.push(vec![i]),
        }
        room.insert((left - needed, row));
    }
    rows
}
