//! Tables: what columns learn from the training data, how rows are encoded, and what is refused.

use std::fs;

use autobwd::{ErrorKind, Result, Tensor};
use autobwd_data::{
    Batch, CategoryColumn, CsvColumns, CsvEncoder, Dataset, Fill, NumberColumn, Scaling, Subset,
    TensorDataset,
};
use proptest::prelude::*;

/// The numbers of the field `x` of a text.
fn x_of(columns: &CsvColumns, text: &str) -> Result<Vec<f64>> {
    Ok(columns.parse(text.as_bytes())?.all()?.get("x")?.to_f64s())
}

fn refusal<T>(outcome: Result<T>) -> String {
    outcome.err().map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn csv_files_are_read_by_column() -> Result<()> {
    let columns =
        CsvColumns::new().delimiter(b';').numbers("x", ["b", "a"]).classes("y", "kind", &["cat", "dog"]);
    let text = "a;kind;b\n1; dog ;2.5\n-3e2;cat;4\n";
    let batch = columns.parse(text.as_bytes())?.batch(&[0, 1])?;
    let x = Tensor::from_vec([2, 2], vec![2.5_f32, 1.0, 4.0, -300.0])?;
    assert_eq!(batch, Batch::new([("x", x), ("y", Tensor::from_vec([2, 1], vec![1_i64, 0])?)])?);
    Ok(())
}

#[test]
fn csv_files_with_faults_are_refused() {
    let columns =
        CsvColumns::new().numbers("x", ["a"]).integers("n", ["n"]).classes("y", "kind", &["cat", "dog"]);
    let refused = |columns: &CsvColumns, text: &str| columns.parse(text.as_bytes()).unwrap_err().to_string();
    let cases = [
        ("a,n,kind\n1,2,cat\nx,2,cat\n", "line 3, column `a`: `x` is not a finite number"),
        ("a,n,kind\ninf,2,cat\n", "line 2, column `a`: `inf` is not a finite number"),
        ("a,n,kind\n1e39,2,cat\n", "line 2, column `a`: `1e39` is not a finite number of float32"),
        ("a,n,kind\n1,2.5,cat\n", "line 2, column `n`: `2.5` is not an integer"),
        ("a,n,kind\n1,2,cow\n", "line 2, column `kind`: `cow` is not one of cat, dog"),
        ("b,n,Kind\n1,2,cat\n", "there is no column `a`; did you mean `b` or `n`?"),
        ("a,a,n,kind\n1,1,2,cat\n", "two columns have the name `a`"),
        ("a,n,kind\n", "there are no rows"),
    ];
    for (text, expected) in cases {
        assert_eq!(refused(&columns, text), expected);
    }
    assert!(refused(&columns, "a,n,kind\n1,2\n").contains("line: 2"));
    let numbered = CsvColumns::new().header(false).numbers("x", 0..3);
    assert_eq!(refused(&numbered, "1,2\n"), "there is no column 2: rows have 2 cells, counted from 0");
    assert_eq!(refused(&numbered, ""), "there are no rows");
    let named = numbered.numbers("y", ["b"]);
    assert_eq!(refused(&named, "1,2,3\n"), "there is no header row with a column `b`: columns have numbers");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.csv");
    let refused_file = || columns.read(&path).unwrap_err().to_string();
    assert!(refused_file().starts_with(&format!("cannot read `{}`: ", path.display())));
    fs::write(&path, b"a,n,kind\n1,2,\xff\n").unwrap();
    assert!(refused_file().starts_with(&format!("`{}`: CSV parse error", path.display())));
}

#[test]
fn missing_cells_are_refused_unless_something_fills_them() -> Result<()> {
    let text = "a\n1\nNA\n3\n?\n8\n";
    let filled = |fill| x_of(&CsvColumns::new().numbers("x", [NumberColumn::new("a").fill(fill)]), text);
    assert_eq!(filled(Fill::Mean)?, [1.0, 4.0, 3.0, 4.0, 8.0]);
    assert_eq!(filled(Fill::Median)?, [1.0, 3.0, 3.0, 3.0, 8.0]);
    assert_eq!(filled(Fill::Constant(-1.0))?, [1.0, -1.0, 3.0, -1.0, 8.0]);
    assert!(filled(Fill::Nan)?[1].is_nan());
    assert_eq!(
        refusal(x_of(&CsvColumns::new().numbers("x", ["a"]), text)),
        "line 3, column `a`: `NA` is a missing cell: `drop_missing` leaves its row out, `NumberColumn::fill` replaces it"
    );
    // Other texts than the usual ones.
    let dashes = CsvColumns::new().missing(&["-"]);
    let dashes_filled = dashes.clone().numbers("x", [NumberColumn::new("a").fill(Fill::Mean)]);
    assert_eq!(x_of(&dashes_filled, "a\n2\n-\n")?, [2.0, 2.0]);
    assert_eq!(
        refusal(x_of(&dashes_filled, "a\n2\nNA\n")),
        "line 3, column `a`: `NA` is not a finite number"
    );
    assert_eq!(
        refusal(x_of(&dashes.integers("x", ["a"]), "a\n2\n-\n")),
        "line 3, column `a`: `-` is a missing cell: `drop_missing` leaves its row out"
    );
    Ok(())
}

#[test]
fn rows_with_missing_cells_are_dropped() -> Result<()> {
    let columns = CsvColumns::new().numbers("x", ["a"]);
    let table = columns.parse_table("a,b\n1,\n2,x\nNA,y\n".as_bytes())?;
    assert_eq!((table.len(), table.header()), (3, &["a".to_string(), "b".to_string()][..]));
    assert_eq!(table.drop_missing(["b"])?.len(), 2);
    let complete = table.drop_missing(["a", "b"])?;
    assert_eq!(columns.fit(&complete)?.encode(&complete)?.all()?.get("x")?.to_f64s(), [2.0]);
    assert_eq!(refusal(table.drop_missing(["c"])), "there is no column `c`; did you mean `a` or `b`?");
    let none = complete.drop_missing(["a"])?.split(0.5, 0);
    assert_eq!(refusal(none), "a split of 1 examples by 0.5 leaves a part without examples");
    Ok(())
}

#[test]
fn scales_are_learned_from_filled_training_data_alone() -> Result<()> {
    let number = NumberColumn::new("a").fill(Fill::Mean).scale(Scaling::Standard);
    let columns = CsvColumns::new().numbers("x", [number]);
    let encoder = columns.fit(&columns.parse_table("a\n-2\nNA\n2\n0\n".as_bytes())?)?;
    let test = encoder.parse("a\n10\nNA\n".as_bytes())?.all()?;
    assert_eq!(test.get("x")?.to_f64s(), [f64::from((10.0 / 2_f64.sqrt()) as f32), 0.0]);

    // A column with one value alone.
    let constant = CsvColumns::new().numbers("x", [NumberColumn::new("a").scale(Scaling::Standard)]);
    assert_eq!(x_of(&constant, "a\n5\n5\n")?, [0.0, 0.0]);
    let constant = CsvColumns::new().numbers("x", [NumberColumn::new("a").scale(Scaling::MinMax)]);
    assert_eq!(x_of(&constant, "a\n5\n5\n")?, [0.0, 0.0]);
    // Numbers that float32 cannot tell apart are scaled before they are rounded.
    assert_eq!(x_of(&constant, "a\n1700000000\n1700000001\n1700000002\n")?, [0.0, 0.5, 1.0]);

    let without = CsvColumns::new().numbers("x", [NumberColumn::new("a").fill(Fill::Mean)]);
    assert_eq!(refusal(x_of(&without, "a\nNA\n")), "column `a` has no numbers to learn from");
    let beyond = "column `a`: its fill and its scale must be finite numbers";
    assert_eq!(refusal(x_of(&constant, "a\n-1.7e308\n1.7e308\n")), beyond);
    let infinite = NumberColumn::new("a").fill(Fill::Constant(f64::INFINITY));
    assert_eq!(refusal(x_of(&CsvColumns::new().numbers("x", [infinite]), "a\n1\n")), beyond);
    Ok(())
}

#[test]
fn classes_are_learned_and_kept() -> Result<()> {
    let columns = CsvColumns::new()
        .numbers("x", ["n"])
        .one_hot("x", "colour")
        .one_hot("x", CategoryColumn::new("size").classes(&["S", "NA"]).other())
        .categories("y", "kind");
    let train = "n,colour,size,kind\n1,red,S,dog\n2,blue,NA,cat\n3,red,XL,cat\n";
    let encoder = columns.fit(&columns.parse_table(train.as_bytes())?)?;
    assert_eq!(encoder.features("x")?, ["n", "colour=blue", "colour=red", "size=S", "size=NA", "size=other"]);
    assert_eq!(
        (encoder.features("y")?, encoder.classes("y")?),
        (vec!["kind".to_string()], vec!["cat", "dog"])
    );
    let test = encoder.parse("kind,size,n,colour\ncat,,4,blue\n".as_bytes())?.all()?;
    let x = Tensor::from_vec([1, 6], vec![4_f32, 1.0, 0.0, 0.0, 0.0, 1.0])?;
    assert_eq!(test, Batch::new([("x", x), ("y", Tensor::from_vec([1, 1], vec![0_i64])?)])?);

    let refused = |row: &str| refusal(encoder.parse(format!("n,colour,size,kind\n{row}\n").as_bytes()));
    assert_eq!(refused("1,green,S,cat"), "line 2, column `colour`: `green` is not one of blue, red");
    assert_eq!(
        refused("1,NA,S,cat"),
        "line 2, column `colour`: `NA` is a missing cell: `drop_missing` leaves its row out, `CategoryColumn::other` \
         makes it a class"
    );
    assert_eq!(refusal(encoder.classes("x")), "field `x` has no classes: it is not one column of categories");
    assert_eq!(refusal(encoder.select(&["z"])), "the encoder has no field `z`; did you mean `x` or `y`?");
    Ok(())
}

#[test]
fn columns_that_cannot_be_encoded_are_refused() {
    let refused = |columns: &CsvColumns| refusal(columns.parse("a,b\n1,x\n2,y\n".as_bytes()));
    let mixed = CsvColumns::new().numbers("x", ["a"]).categories("x", "b");
    assert_eq!(refused(&mixed), "field `x` has columns of float32 and of int64, which need a field each");
    let twice = CsvColumns::new().classes("y", "b", &["x", "y", "x"]);
    assert_eq!(refused(&twice), "column `b`: the class `x` occurs twice");
    assert_eq!(refused(&CsvColumns::new().classes("y", "b", &[])), "column `b`: there are no classes");
    assert_eq!(refused(&CsvColumns::new()), "examples need at least one field");
    let ids: String = (0..5000).map(|k| format!("id{k}\n")).collect();
    let text = refusal(CsvColumns::new().one_hot("x", "id").parse(format!("id\n{ids}").as_bytes()));
    assert!(text.starts_with("column `id`: 5000 classes are more than the 4096 of `one_hot`"), "{text}");
    let many = CsvColumns::new().categories("x", "id");
    let train = many.parse_table(format!("id\n{ids}").as_bytes()).unwrap();
    let text = refusal(many.fit(&train).unwrap().parse("id\nid5000\n".as_bytes()));
    assert!(text.ends_with(" and 4990 more"), "{text}");
}

#[test]
fn splits_take_the_share_of_each_class() -> Result<()> {
    let rows: String = (0..30).map(|k| if k % 3 == 0 { "a\n" } else { "b\n" }).collect();
    let columns = CsvColumns::new().categories("y", "kind");
    let table = columns.parse_table(format!("kind\n{rows}").as_bytes())?;
    let (train, test) = table.split_stratified("kind", 0.8, 5)?;
    let encoder = columns.fit(&train)?;
    for (part, expected) in [(train, [8, 16]), (test, [2, 4])] {
        let labels = encoder.encode(&part)?.all()?.get("y")?.to_f64s();
        let second = labels.iter().filter(|label| **label == 1.0).count();
        assert_eq!([labels.len() - second, second], expected);
    }
    for fraction in [0.0, 1.0, f64::NAN, -1.0] {
        assert_eq!(
            refusal(table.split(fraction, 0)),
            format!("a split needs a fraction between 0 and 1, not {fraction}")
        );
    }
    Ok(())
}

#[test]
fn files_of_encoders_with_faults_are_refused() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("encoder.json");
    let columns = CsvColumns::new()
        .numbers("x", [NumberColumn::new("a").fill(Fill::Mean).scale(Scaling::Standard)])
        .categories("y", "b");
    let train = columns.parse_table("a,b\n1,p\n2,q\n".as_bytes())?;
    columns.fit(&train)?.save(&path)?;
    let json = fs::read_to_string(&path).unwrap();
    let faults = [
        ("\"version\": 1", "\"version\": 2", "it has version 2, not 1"),
        ("\"divide\": 0.5", "\"divide\": 0.0", "its fill and its scale must be finite numbers"),
        ("\"q\"", "\"p\"", "the class `p` occurs twice"),
        ("\"has_other\"", "\"other\"", "unknown field `other`"),
    ];
    for (good, bad, expected) in faults {
        assert!(json.contains(good), "{json}");
        fs::write(&path, json.replace(good, bad)).unwrap();
        let e = CsvEncoder::load(&path).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Format);
        assert!(e.to_string().contains("` is no encoder: ") && e.to_string().contains(expected), "{e}");
    }
    Ok(())
}

#[test]
fn subsets_refuse_indices_that_they_lack() -> Result<()> {
    let data = || TensorDataset::new([("x", Tensor::from_vec([3, 1], vec![0_f32, 1.0, 2.0])?)]);
    assert_eq!(refusal(Subset::new(data()?.into(), vec![3])), "there is no example 3: the data set has 3");
    let part = Subset::new(data()?.into(), vec![2, 0])?;
    assert_eq!(part.batch(&[1, 0])?.get("x")?.to_f64s(), [0.0, 2.0]);
    assert_eq!(refusal(part.batch(&[2])), "there is no example 2: the data set has 2");
    assert_ne!(part.fingerprint(), Subset::new(data()?.into(), vec![0, 2])?.fingerprint());
    Ok(())
}

/// Rows of a number, which may be missing, and a category.
fn rows() -> impl Strategy<Value = Vec<(Option<f64>, u8)>> {
    prop::collection::vec((prop::option::weighted(0.8, -1e6..1e6), 0..5_u8), 2..60)
}

fn text_of(rows: &[(Option<f64>, u8)]) -> String {
    let cells = rows.iter().map(|(number, class)| {
        let number = number.map_or("NA".into(), |number| number.to_string());
        format!("{number},class {class}\n")
    });
    format!("n,c\n{}", cells.collect::<String>())
}

proptest! {
    #[test]
    fn standardised_training_data_have_mean_0_and_variance_1(rows in rows()) {
        let number = NumberColumn::new("n").fill(Fill::Median).scale(Scaling::Standard);
        let columns = CsvColumns::new().numbers("x", [number]);
        let text = text_of(&rows);
        prop_assume!(rows.iter().any(|(number, _)| number.is_some()));
        let x = x_of(&columns, &text).unwrap();
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64;
        let is_constant = x.iter().all(|x| *x == 0.0);
        prop_assert!(mean.abs() < 1e-5 && (is_constant || (variance - 1.0).abs() < 1e-5), "{mean} {variance}");
    }

    #[test]
    fn scaled_training_data_are_between_0_and_1(rows in rows()) {
        let number = NumberColumn::new("n").fill(Fill::Mean).scale(Scaling::MinMax);
        prop_assume!(rows.iter().any(|(number, _)| number.is_some()));
        let x = x_of(&CsvColumns::new().numbers("x", [number]), &text_of(&rows)).unwrap();
        prop_assert!(x.iter().all(|x| (0.0..=1.0).contains(x)), "{x:?}");
    }

    #[test]
    fn one_hot_rows_have_the_sum_1_and_the_position_of_the_class(rows in rows()) {
        let columns = CsvColumns::new().one_hot("x", "c").categories("y", "c");
        let batch = columns.parse(text_of(&rows).as_bytes()).unwrap().all().unwrap();
        let (x, y) = (batch.get("x").unwrap(), batch.get("y").unwrap());
        let width = x.dims()[1];
        for (row, class) in x.to_f64s().chunks(width).zip(y.to_f64s()) {
            prop_assert_eq!(row.iter().sum::<f64>(), 1.0);
            prop_assert_eq!(row[class as usize], 1.0);
        }
    }

    #[test]
    fn splits_are_partitions_that_the_seed_decides(n in 2..200_usize, fraction in 0.01..0.99_f64, seed: u64) {
        let x = Tensor::from_vec([n, 1], (0..n).map(|k| k as f32).collect()).unwrap();
        let data = || TensorDataset::new([("x", x.clone())]).unwrap();
        let first = (n as f64 * fraction).round() as usize;
        let Ok((train, test)) = Subset::split(data(), fraction, seed) else {
            prop_assert!(first == 0 || first == n);
            return Ok(());
        };
        let numbers = |part: &Subset<TensorDataset>| part.all().unwrap().get("x").unwrap().to_f64s();
        prop_assert_eq!(train.len(), first);
        let mut all = [numbers(&train), numbers(&test)].concat();
        all.sort_by(f64::total_cmp);
        prop_assert_eq!(all, (0..n).map(|k| k as f64).collect::<Vec<_>>());
        let (again, _) = Subset::split(data(), fraction, seed).unwrap();
        prop_assert_eq!(numbers(&again), numbers(&train));
    }

    #[test]
    fn saved_encoders_encode_the_same_bits(rows in rows()) {
        let scaled = NumberColumn::new("n").fill(Fill::Mean).indicator().scale(Scaling::Standard);
        let filled = NumberColumn::new("n").fill(Fill::Nan).scale(Scaling::MinMax);
        let columns = CsvColumns::new()
            .numbers("x", [scaled, filled])
            .one_hot("x", CategoryColumn::new("c").other())
            .categories("y", "c");
        prop_assume!(rows.iter().any(|(number, _)| number.is_some()));
        let table = columns.parse_table(text_of(&rows).as_bytes()).unwrap();
        let encoder = columns.fit(&table).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("encoder.json");
        encoder.save(&path).unwrap();
        let loaded = CsvEncoder::load(&path).unwrap();
        let bytes = |encoder: &CsvEncoder| encoder.encode(&table).unwrap().all().unwrap().get("x").unwrap().bytes().to_vec();
        prop_assert_eq!(bytes(&encoder), bytes(&loaded));
    }

    #[test]
    fn damaged_tables_and_encoders_never_panic(rows in rows(), at: usize, byte: u8) {
        let columns = CsvColumns::new()
            .numbers("x", [NumberColumn::new("n").fill(Fill::Median).scale(Scaling::Standard)])
            .one_hot("x", "c");
        let damaged = |mut bytes: Vec<u8>| {
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes
        };
        drop(columns.parse(&damaged(text_of(&rows).into_bytes())[..]));
        let table = columns.parse_table(text_of(&rows).as_bytes()).unwrap();
        let Ok(encoder) = columns.fit(&table) else { return Ok(()) };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("encoder.json");
        encoder.save(&path).unwrap();
        fs::write(&path, damaged(fs::read(&path).unwrap())).unwrap();
        if let Ok(encoder) = CsvEncoder::load(&path) {
            drop(encoder.encode(&table));
            drop(encoder.parse(text_of(&rows).as_bytes()));
        }
    }
}
