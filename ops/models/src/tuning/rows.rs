//! Examples in rows of one length.

use std::collections::BTreeSet;

use autobwd::{DType, Dims, Error, ErrorKind, Meta, Result, Tensor, tensor::Dim};
use autobwd_data::{Batch, Dataset};
use xxhash_rust::xxh3::Xxh3;

use super::{Example, Features, FineTuning, faults, loss::IGNORED};

/// The feed of the labels.
pub(super) const LABELS: &str = "labels";

/// What the rows of a model hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowKind {
    pub(super) input: RowInput,
    pub(super) target: RowTarget,
}

/// What a model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowInput {
    /// Texts, and the position of each token in its text.
    PackedTokens,
    /// A text, and whether each token is one.
    Tokens,
    /// The input of this name and these dimensions, after the dimension of the batch.
    Features(&'static str, Vec<usize>),
}

/// What a model finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowTarget {
    /// The token after each one.
    NextTokens,
    /// A label for each token.
    TokenLabels,
    Class,
    /// A text that a decoder generates, which is fed its tokens after a first one.
    Text {
        start: i64,
        padding: i64,
    },
}

/// What a model can read and learn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The largest number of tokens of a text that is read, and of one that a decoder generates.
    pub(super) positions: [Option<usize>; 2],
    /// The number of tokens that can be read.
    pub(super) vocabulary: i64,
    /// The number of logits of a text or a token.
    pub(super) classes: i64,
}

/// Rows of examples, with the same number of elements in each.
#[derive(Debug)]
pub(super) struct Rows {
    kind: RowKind,
    pub(super) length: usize,
    /// The number of tokens of a text that a decoder generates.
    pub(super) target_length: usize,
    /// The numbers of the examples in each row.
    rows: Vec<Vec<usize>>,
    examples: Vec<Example>,
}

/// The number of tokens of a row, and of a text that a decoder generates: a number that is asked for, or the length of the
/// longest example.
///
/// # Errors
/// More tokens than the model has positions.
pub(super) fn row_lengths<'a>(
    tuning: &FineTuning,
    kind: &RowKind,
    limits: &Limits,
    examples: impl Iterator<Item = &'a Example> + Clone,
) -> Result<[usize; 2]> {
    let asked = match kind.input {
        RowInput::Features(..) => [None, tuning.length],
        _ => [tuning.length, None],
    };
    let tokens = examples.clone().map(|example| example.tokens.len());
    let targets = examples.map(|example| example.labels.len());
    let longest = [tokens.max().unwrap_or(0), targets.max().unwrap_or(0)];
    let length = |side: usize| {
        let bound = limits.positions[side].unwrap_or(usize::MAX);
        let shortened = if tuning.is_truncating { bound } else { usize::MAX };
        let length = asked[side].unwrap_or(longest[side].min(shortened));
        match length > bound {
            false => Ok(length),
            true => {
                let text = format!(
                    "rows of {length} tokens are longer than the {bound} positions of the model: give a shorter length, \
                     and cut longer examples"
                );
                Err(Error::new(ErrorKind::Data, text))
            }
        }
    };
    let is_text = matches!(kind.target, RowTarget::Text { .. });
    Ok([length(0)?, if is_text { length(1)? } else { 0 }])
}

impl Rows {
    /// Puts examples into rows of [these lengths](row_lengths), whose number is a multiple of `multiple`: the last ones may
    /// be empty.
    ///
    /// # Errors
    /// No examples; one list of all that do not fit into a row.
    pub(super) fn new(
        tuning: &FineTuning,
        kind: &RowKind,
        mut examples: Vec<Example>,
        limits: &Limits,
        ([length, target_length], multiple): ([usize; 2], usize),
    ) -> Result<Rows> {
        if examples.is_empty() {
            return Err(Error::new(ErrorKind::Data, "there are no examples"));
        }
        let rows = Rows { kind: kind.clone(), length, target_length, rows: vec![], examples: vec![] };
        let mut faults = vec![];
        for (i, example) in examples.iter_mut().enumerate() {
            if tuning.is_truncating {
                rows.truncate(example);
            }
            let fault = rows.fault(example, limits);
            faults.extend(fault.map(|fault| format!("example {}: {fault}", i + 1)));
        }
        faults::require_none(faults, "the examples do not fit")?;
        let mut numbers = match tuning.is_packing && kind.input == RowInput::PackedTokens {
            true => packed(&examples, length),
            false => (0..examples.len()).map(|i| vec![i]).collect(),
        };
        numbers.resize(numbers.len().next_multiple_of(multiple), vec![]);
        Ok(Rows { rows: numbers, examples, ..rows })
    }

    /// How many rows there are, examples, tokens of these, and labels that count.
    pub(super) fn counts(&self) -> [usize; 4] {
        let tokens = self.examples.iter().map(|example| example.tokens.len()).sum();
        let counted = self.examples.iter().map(|example| self.counted(example)).sum();
        [self.rows.len(), self.examples.len(), tokens, counted]
    }

    /// The feeds of a model by so many rows.
    pub(super) fn feeds(&self, rows: usize) -> Vec<(&'static str, Meta)> {
        let dims = |of_row: &[usize]| [rows].iter().chain(of_row).map(|n| Dim::from(*n)).collect::<Dims>();
        let integers = |(name, row): (&'static str, Vec<i64>)| {
            let of_row = (!self.is_of_one(name)).then_some(row.len());
            (name, Meta::new(DType::I64, dims(of_row.as_slice())))
        };
        let mut feeds: Vec<_> = self.row(&[]).into_iter().map(integers).collect();
        if let RowInput::Features(name, of_row) = &self.kind.input {
            feeds.push((*name, Meta::new(DType::F32, dims(of_row))));
        }
        feeds
    }

    /// Whether a row has one number of this name, without a dimension for it.
    fn is_of_one(&self, name: &str) -> bool {
        name == LABELS && self.kind.target == RowTarget::Class
    }

    /// The integers of a row, by the name of the feed.
    fn row(&self, row: &[usize]) -> Vec<(&'static str, Vec<i64>)> {
        let (mut ids, mut second, mut labels) = (vec![], vec![], vec![]);
        for example in row.iter().map(|i| &self.examples[*i]) {
            let count = example.tokens.len();
            ids.extend(&example.tokens);
            match self.kind.input {
                RowInput::PackedTokens => second.extend(0..count as i64),
                _ => second.resize(count, 1),
            }
            let skipped = usize::from(self.kind.target == RowTarget::NextTokens);
            labels.extend(example.labels.iter().skip(skipped));
            labels.resize(labels.len() + skipped, IGNORED);
        }
        // Padding is a text of its own, or no text.
        match self.kind.input {
            RowInput::PackedTokens => second.extend(0..(self.length - ids.len()) as i64),
            _ => second.resize(self.length, 0),
        }
        ids.resize(self.length, 0);
        let mut row = match self.kind.input {
            RowInput::PackedTokens => vec![("input_ids", ids), ("position_ids", second)],
            RowInput::Tokens => vec![("input_ids", ids), ("attention_mask", second)],
            RowInput::Features(..) => vec![],
        };
        let count = match self.kind.target {
            RowTarget::Class => 1,
            RowTarget::NextTokens | RowTarget::TokenLabels => self.length,
            RowTarget::Text { .. } => self.target_length,
        };
        labels.resize(count, IGNORED);
        if let RowTarget::Text { start, padding } = self.kind.target {
            let fed = |label: &i64| if *label == IGNORED { padding } else { *label };
            let fed = [start].into_iter().chain(labels.iter().map(fed)).take(count).collect();
            row.push(("decoder_input_ids", fed));
        }
        row.push((LABELS, labels));
        row
    }

    /// Puts the features of these rows into a tensor; rows without example have zeros.
    fn read_features(&self, rows: &[&Vec<usize>], into: &mut Tensor) -> Result<()> {
        let dims = into.dims()[1..].to_vec();
        let numbers = into.slice_mut::<f32>()?.chunks_exact_mut(dims.iter().product::<usize>().max(1));
        for (to, row) in numbers.zip(rows) {
            let Some(features) = row.first().and_then(|i| self.examples[*i].features.as_ref()) else {
                continue;
            };
            let read = features.read()?;
            if read.numel() != to.len() {
                let text = format!("features are {:?}, not {dims:?}", read.dims());
                return Err(Error::new(ErrorKind::Data, text));
            }
            to.copy_from_slice(read.slice()?);
        }
        Ok(())
    }

    /// Cuts an example. The token that closes the text of an encoder, or of a decoder that follows one, stays.
    fn truncate(&self, example: &mut Example) {
        let is_closed = self.kind.input != RowInput::PackedTokens;
        truncate(&mut example.tokens, is_closed, self.length);
        match self.kind.target {
            RowTarget::Class => {}
            RowTarget::NextTokens | RowTarget::TokenLabels => {
                truncate(&mut example.labels, is_closed, self.length);
            }
            RowTarget::Text { .. } => truncate(&mut example.labels, true, self.target_length),
        }
    }

    /// The number of labels that count.
    fn counted(&self, example: &Example) -> usize {
        // Nothing comes before the first token of a text.
        let skipped = usize::from(self.kind.target == RowTarget::NextTokens);
        example.labels.iter().skip(skipped).filter(|label| **label != IGNORED).count()
    }

    /// What is wrong with an example.
    fn fault(&self, example: &Example, limits: &Limits) -> Option<String> {
        self.input_fault(example, limits).or_else(|| self.target_fault(example, limits))
    }

    fn input_fault(&self, Example { tokens, features, .. }: &Example, limits: &Limits) -> Option<String> {
        match (&self.kind.input, features.as_ref().map(Features::dims)) {
            (RowInput::Features(name, _), None) => {
                return Some(format!("the model reads `{name}`, and the example has no features"));
            }
            (RowInput::Features(name, needed), Some(dims)) => {
                return (*needed != dims).then(|| format!("`{name}` are {needed:?}, not {dims:?}"));
            }
            (_, Some(_)) => return Some("the model reads tokens, not features".into()),
            (_, None) => {}
        }
        if tokens.len() > self.length {
            return Some(format!("{} tokens are more than the {} of a row", tokens.len(), self.length));
        }
        let vocabulary = limits.vocabulary;
        match tokens.iter().find(|token| !(0..vocabulary).contains(*token)) {
            Some(token) => Some(format!("the model has {vocabulary} tokens, and no token {token}")),
            None => tokens.is_empty().then(|| "it is empty".into()),
        }
    }

    fn target_fault(&self, example: &Example, limits: &Limits) -> Option<String> {
        let (Example { tokens, labels, .. }, classes) = (example, limits.classes);
        let (count, target) = (labels.len(), self.kind.target);
        match target {
            RowTarget::Class if count != 1 => {
                return Some(format!("one class is needed, not {count} labels"));
            }
            RowTarget::NextTokens | RowTarget::TokenLabels if count != tokens.len() => {
                let tokens = tokens.len();
                return Some(format!(
                    "a label for each token is needed, not {count} labels for {tokens} tokens"
                ));
            }
            RowTarget::Text { .. } if count > self.target_length => {
                return Some(format!("{count} tokens to generate are more than the {}", self.target_length));
            }
            _ => {}
        }
        let is_unknown = |label: &&i64| **label != IGNORED && !(0..classes).contains(*label);
        match labels.iter().find(is_unknown) {
            Some(label) => Some(format!("the head has {classes} classes, and no class {label}")),
            None if target == RowTarget::TokenLabels && labels == tokens => Some(
                "no token is hidden, so that there is nothing to learn: mask some (`--mask` of the command)"
                    .into(),
            ),
            None if self.counted(example) == 0 => Some("none of its tokens in the row is learned".into()),
            None => None,
        }
    }
}

impl Dataset for Rows {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn batch(&self, indices: &[usize]) -> Result<Batch> {
        let missing = |i: &usize| Error::new(ErrorKind::NoValue, format!("there is no row {i}"));
        let row = |i: &usize| self.rows.get(*i).ok_or_else(|| missing(i));
        let rows: Vec<&Vec<usize>> = indices.iter().map(row).collect::<Result<_>>()?;
        let integers: Vec<_> = rows.iter().map(|row| self.row(row)).collect();
        let field = |(name, meta): (&'static str, Meta)| {
            let mut field = Tensor::zeros(meta.dtype, &meta.dims.known().unwrap_or_default())?;
            match meta.dtype {
                DType::F32 => self.read_features(&rows, &mut field)?,
                _ => {
                    let of_name = integers.iter().flatten().filter(|(known, _)| *known == name);
                    let numbers = of_name.flat_map(|(_, numbers)| numbers);
                    field.slice_mut::<i64>()?.iter_mut().zip(numbers).for_each(|(to, number)| *to = *number);
                }
            }
            Ok((name, field))
        };
        Batch::new(self.feeds(rows.len()).into_iter().map(field).collect::<Result<Vec<_>>>()?)
    }

    fn fingerprint(&self) -> u64 {
        let mut hash = Xxh3::new();
        for row in &self.rows {
            for (name, numbers) in self.row(row) {
                hash.update(name.as_bytes());
                numbers.iter().for_each(|number| hash.update(&number.to_le_bytes()));
            }
            let features = row.iter().filter_map(|i| self.examples[*i].features.as_ref());
            features.for_each(|features| hash.update(&features.mark()));
        }
        hash.digest()
    }
}

/// Cuts a text; its last token stays if it closes the text.
fn truncate(tokens: &mut Vec<i64>, is_closed: bool, length: usize) {
    if tokens.len() > length {
        let last = tokens.last().copied();
        tokens.truncate(length);
        if is_closed && let (Some(end), Some(last)) = (tokens.last_mut(), last) {
            *end = last;
        }
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
