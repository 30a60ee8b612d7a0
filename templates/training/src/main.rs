//! Trains a classifier on the table `data/points.csv`.

mod classifier;

use std::path::Path;

fn main() -> autobwd::Result<()> {
    let table = classifier::columns().table("data/points.csv")?;
    let accuracy = classifier::train(&table, Path::new("."))?;
    println!("{:.0} % of the rows that were held out are right", 100.0 * accuracy);
    Ok(())
}
