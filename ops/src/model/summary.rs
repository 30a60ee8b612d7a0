//! The table of the parameters of a program.

use std::fmt;

use autobwd::Program;

/// The parameters of a program, layer by layer, with counts and bytes; its text is a table.
///
/// ```
/// use autobwd::Builder;
/// use autobwd_ops::{model::ParameterSummary, nn::Linear, optim::freeze};
/// let net = Builder::new();
/// Linear::builder(&net, 8, 4).name("encoder").build();
/// Linear::builder(&net, 4, 2).name("head").build();
/// freeze(&net, &["encoder.*"])?;
/// let summary = ParameterSummary::of(&*net.program()?);
/// assert_eq!((summary.count(), summary.bytes(), summary.trained()), (46, 184, 10));
/// assert_eq!(summary.to_string(), "\
/// layer    parameter  value           count  bytes
/// encoder  w          float32 [8, 4]     32    128  frozen
///          b          float32 [4]         4     16  frozen
/// head     w          float32 [4, 2]      8     32
///          b          float32 [2]         2      8
/// 46 parameters, 184 bytes: 10 trained, 36 frozen
/// ");
/// # Ok::<(), autobwd::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterSummary {
    rows: Vec<SummaryRow>,
}

#[derive(Clone, Debug, PartialEq)]
struct SummaryRow {
    name: String,
    /// Dtype and shape.
    value: String,
    count: usize,
    bytes: usize,
    is_frozen: bool,
}

impl ParameterSummary {
    /// The parameters in declaration order.
    pub fn of(program: &Program) -> ParameterSummary {
        let rows = program.parameters().filter_map(|var| {
            let desc = program.root().vars.get(&var)?;
            let meta = desc.meta();
            Some(SummaryRow {
                name: program.name(var).into(),
                count: meta.dims.numel().get().unwrap_or(0),
                bytes: meta.bytes().unwrap_or(0),
                value: meta.to_string(),
                is_frozen: desc.stop_gradient,
            })
        });
        ParameterSummary { rows: rows.collect() }
    }

    /// The number of elements of all parameters.
    pub fn count(&self) -> usize {
        self.rows.iter().map(|row| row.count).sum()
    }

    /// The bytes of all parameters.
    pub fn bytes(&self) -> usize {
        self.rows.iter().map(|row| row.bytes).sum()
    }

    /// The number of elements of the parameters that are not frozen.
    pub fn trained(&self) -> usize {
        self.rows.iter().filter(|row| !row.is_frozen).map(|row| row.count).sum()
    }
}

impl fmt::Display for ParameterSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = vec![["layer", "parameter", "value", "count", "bytes"].map(String::from)];
        let mut last = None;
        for row in &self.rows {
            let (layer, part) = row.name.rsplit_once('.').unwrap_or(("", &row.name));
            let shown = if last == Some(layer) { "" } else { layer };
            last = Some(layer);
            let (count, bytes) = (row.count.to_string(), row.bytes.to_string());
            table.push([shown.into(), part.into(), row.value.clone(), count, bytes]);
        }
        let width = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths = [0, 1, 2, 3, 4].map(width);
        let frozen = [false].into_iter().chain(self.rows.iter().map(|row| row.is_frozen));
        for ([layer, part, value, count, bytes], is_frozen) in table.iter().zip(frozen) {
            let [a, b, c, d, e] = widths;
            let mark = if is_frozen { "  frozen" } else { "" };
            writeln!(f, "{layer:a$}  {part:b$}  {value:c$}  {count:>d$}  {bytes:>e$}{mark}")?;
        }
        let (count, bytes, trained) = (self.count(), self.bytes(), self.trained());
        writeln!(f, "{count} parameters, {bytes} bytes: {trained} trained, {} frozen", count - trained)
    }
}
