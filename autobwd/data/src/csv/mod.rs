//! Tables in CSV files as data sets: [`CsvColumns`] describes fields, [`CsvTable`] holds the rows of a file, and
//! [`CsvEncoder`] makes tensors of rows, with what was learned from the training data.

mod category;
mod columns;
mod encoder;
mod number;
mod table;

pub use category::CategoryColumn;
pub use columns::CsvColumns;
pub use encoder::CsvEncoder;
pub use number::{Fill, NumberColumn, Scaling};
pub use table::{CsvColumn, CsvTable};
