//! The framework builds and recognises operators as structs, not by their names.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use autobwd::{OpInfoMap, Result};

/// Sources of the core, without its own operators.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && !["operators", "target", "tests"].iter().any(|folder| name == *folder) {
            sources(&path, found)?;
        } else if path.extension().is_some_and(|e| e == "rs") && name != "tests.rs" {
            found.push(path);
        }
    }
    Ok(())
}

/// Whether a line of code identifies an operator by a string. Prefixes of variable names may be strings, and so may
/// attributes: random operators have a `seed`, others a `shape`.
fn names_an_operator(line: &str, core: &[&str]) -> bool {
    let compared = ["OpDesc::new(\"", ".ty == \"", ".ty != \"", ".ty) == \"", ".ty) != \""];
    let literal = |name: &&str| !["seed", "shape"].contains(name) && line.contains(&format!("\"{name}\""));
    compared.iter().any(|text| line.contains(text))
        || (!line.contains("fresh(\"") && core.iter().any(literal))
}

#[test]
fn no_operator_is_meant_by_a_string() -> Result<()> {
    let own = OpInfoMap::linked()?.iter().filter(|info| info.schema().file.contains("operators/"));
    let core: Vec<&str> = own.map(|info| info.schema().name).collect();
    assert!(core.contains(&"assign") && core.contains(&"while_grad"), "{core:?}");
    assert!(names_an_operator("let op = OpDesc::new(\"relu\");", &core));
    assert!(names_an_operator("        \"recurrent\" => true,", &core));

    let mut files = vec![];
    sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../autobwd")), &mut files).unwrap();
    assert!(files.len() > 100, "{} files", files.len());
    let mut found = vec![];
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.lines().take_while(|line| *line != "#[cfg(test)]");
        for (i, line) in code.enumerate() {
            if !line.trim_start().starts_with("//") && names_an_operator(line, &core) {
                found.push(format!("{}:{}: {}", file.display(), i + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "use the struct of `autobwd::operators`:\n{}", found.join("\n"));
    Ok(())
}
