//! What a registry asks of packages, which `cargo publish` would refuse late: read from the manifests, without a build.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use serde_json::Value;

use crate::support::sources::{files, root};

/// The description of a workspace by `cargo metadata`, without dependencies of dependencies.
fn metadata(manifest: &Path) -> Value {
    let cargo = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .output()
        .unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    serde_json::from_slice(&cargo.stdout).unwrap()
}

/// The packages of the workspace that are to be published.
fn published(workspace: &Value) -> impl Iterator<Item = &Value> {
    let packages = workspace["packages"].as_array().into_iter().flatten();
    // `publish = false` is an empty list of registries.
    packages.filter(|package| package["publish"].is_null())
}

fn name(value: &Value) -> &str {
    value["name"].as_str().unwrap()
}

#[test]
fn every_published_package_is_described() {
    let workspace = metadata(&root().join("Cargo.toml"));
    let mut faults = vec![];
    for package in published(&workspace) {
        let fields = [
            "/description",
            "/license",
            "/readme",
            "/rust_version",
            "/keywords/0",
            "/categories/0",
            "/metadata/docs/rs/targets",
        ];
        let missing = fields.iter().filter(|field| package.pointer(field).is_none_or(Value::is_null));
        faults.extend(missing.map(|field| format!("{}: no `{field}`", name(package))));
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let licences =
            ["LICENSE-APACHE", "LICENSE-MIT"].into_iter().filter(|file| !folder.join(file).is_file());
        faults.extend(licences.map(|file| format!("{}: no file `{file}`", name(package))));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn published_packages_depend_on_versions_of_published_packages() {
    let workspace = metadata(&root().join("Cargo.toml"));
    let names: BTreeSet<&str> = published(&workspace).map(name).collect();
    let (mut count, mut faults) = (0, vec![]);
    for package in published(&workspace) {
        let dependencies = package["dependencies"].as_array().unwrap();
        // Those of tests and examples without a version are left out of archives.
        let built = dependencies.iter().filter(|dependency| dependency["kind"] != "dev");
        for dependency in built.filter(|dependency| !dependency["path"].is_null()) {
            count += 1;
            let fault = if !names.contains(name(dependency)) {
                "is not published"
            } else if dependency["req"] == "*" {
                "has no version"
            } else {
                continue;
            };
            faults.push(format!("{}: the dependency `{}` {fault}", name(package), name(dependency)));
        }
    }
    assert!(count > 40, "only {count} dependencies were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn contributing_names_exactly_the_published_packages() {
    let workspace = metadata(&root().join("Cargo.toml"));
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let list = page.split('`').find(|code| code.starts_with("cargo package -p ")).unwrap();
    let named: Vec<&str> = list.split(" -p ").skip(1).collect();
    assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), published(&workspace).map(name).collect());
    assert_eq!(named.len(), published(&workspace).count(), "a package is named twice");
}

#[test]
fn pinned_toolchain_is_the_oldest_that_packages_support() {
    let workspace = metadata(&root().join("Cargo.toml"));
    let toolchain = fs::read_to_string(root().join("rust-toolchain.toml")).unwrap();
    for package in published(&workspace) {
        let oldest = package["rust_version"].as_str().unwrap();
        assert!(toolchain.contains(&format!("channel = \"{oldest}.")), "{}: {oldest}", name(package));
    }
}

/// A name with a hyphen, which is another name in code.
const NAME: &str = "generated-package";

#[test]
fn templates_are_packages_when_their_placeholders_are_filled_in() {
    let templates = root().join("templates").canonicalize().unwrap();
    for template in ["operator", "training"] {
        let (template, folder) = (templates.join(template), tempfile::tempdir().unwrap());
        let settings = fs::read_to_string(template.join("cargo-generate.toml")).unwrap();
        let mut all = vec![];
        files(&template, &["toml", "md", "rs"], &mut all);
        for file in all {
            let name = file.strip_prefix(&template).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            let filled = text
                .replace("{{project-name}}", NAME)
                .replace("{{crate_name}}", &NAME.replace('-', "_"))
                .replace("{{autobwd}}", &root().to_string_lossy().replace('\\', "/"));
            assert!(!filled.contains("{{"), "{}: another placeholder", file.display());
            let is_filled_in =
                settings.contains(&format!("\"{}\"", name.to_string_lossy().replace('\\', "/")));
            assert_eq!(is_filled_in, text != filled, "{}: `include`", file.display());
            let copy = folder.path().join(name);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::write(copy, filled).unwrap();
        }
        let generated = metadata(&folder.path().join("Cargo.toml"));
        let [package] = &generated["packages"].as_array().unwrap()[..] else { panic!("one package") };
        assert_eq!(name(package), NAME);
        for dependency in package["dependencies"].as_array().unwrap() {
            if let Some(path) = dependency["path"].as_str() {
                let manifest = fs::read_to_string(Path::new(path).join("Cargo.toml")).unwrap();
                assert!(manifest.contains(&format!("name = \"{}\"\n", name(dependency))), "{path}");
            }
        }
    }
}
