//! What a page asks its reader to type.

use std::mem;

use crate::shell;

/// Words after a fence that say "this is for a shell".
const SHELLS: &[&str] = &["sh", "bash", "zsh", "shell", "console", "shell-session"];

/// The commands of one page, in its order.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Its path from the root of the repository.
    pub(crate) name: String,
    pub(crate) commands: Vec<Command>,
    /// What is wrong with the page itself, with the line.
    pub(crate) faults: Vec<String>,
}

/// One complete command, over as many lines as it takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Command {
    /// Line of the page on which it begins, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) marks: Marks,
}

/// What the comments before a block say about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// The block is not run, for this reason.
    pub(crate) not_run: Option<String>,
    /// The exit code, if it is not 0.
    pub(crate) exits: i32,
    /// Texts of which each is printed.
    pub(crate) prints: Vec<String>,
    /// The command goes on until this is printed, and then gets Ctrl-C.
    pub(crate) until: Option<String>,
}

/// A comment before a block that may be a mark.
#[derive(Debug)]
struct Comment<'a> {
    line: usize,
    key: &'a str,
    value: &'a str,
}

/// The opening line of a fenced block.
struct Fence<'a> {
    /// Spaces before it, which are not part of the block.
    indent: usize,
    /// The characters that close it, or more of them.
    bar: &'a str,
    language: &'a str,
}

/// Lines of a block, with their numbers.
type Lines<'a> = Vec<(usize, &'a str)>;

impl Page {
    pub(crate) fn parse(name: &str, text: &str) -> Self {
        let mut page = Self {
            name: name.to_owned(),
            ..Self::default()
        };
        let mut comments = Vec::new();
        let mut lines = (1..).zip(text.lines());
        while let Some((number, line)) = lines.next() {
            if let Some(comment) = Comment::parse(number, line) {
                comments.push(comment);
                continue;
            }
            let Some(fence) = Fence::parse(line) else {
                if !line.trim().is_empty() {
                    page.leads_nowhere(mem::take(&mut comments));
                }
                continue;
            };
            let comments = mem::take(&mut comments);
            match fence.block(&mut lines) {
                None => page.fault(number, "the block has no end"),
                Some(block) if SHELLS.contains(&fence.language) => page.block(number, &comments, &block),
                Some(_) => page.leads_nowhere(comments),
            }
        }
        page.leads_nowhere(comments);
        page
    }

    /// The page starts nodes of its own and does not want others.
    pub(crate) fn starts_nodes(&self) -> bool {
        let mut texts = self.commands.iter().map(|command| &command.text);
        texts.any(|text| text.contains("quorate dev") || text.contains("-- dev"))
    }

    fn block(&mut self, number: usize, comments: &[Comment<'_>], block: &[(usize, &str)]) {
        let mut marks = Marks::default();
        for comment in comments {
            if let Err(fault) = marks.add(comment) {
                self.fault(comment.line, &fault);
            }
        }
        if marks.not_run.is_some() {
            return;
        }
        let mut commands = commands(block);
        match commands.last_mut() {
            Some(last) => last.marks = marks,
            None => self.fault(number, "the block has no command"),
        }
        self.commands.append(&mut commands);
    }

    /// A mark that stands before something else would be overlooked.
    fn leads_nowhere(&mut self, comments: Vec<Comment<'_>>) {
        for comment in comments {
            if Marks::default().add(&comment).is_ok() {
                self.fault(comment.line, "no shell block follows this mark");
            }
        }
    }

    fn fault(&mut self, line: usize, fault: &str) {
        self.faults.push(format!("{}:{line}: {fault}", self.name));
    }
}

impl<'a> Comment<'a> {
    fn parse(line: usize, text: &'a str) -> Option<Self> {
        let inner = text.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
        let (key, value) = inner.split_once(':').unwrap_or((inner, ""));
        let (key, value) = (key.trim(), value.trim());
        Some(Self { line, key, value })
    }
}

impl Marks {
    fn add(&mut self, comment: &Comment<'_>) -> Result<(), String> {
        let Comment { key, value, .. } = *comment;
        if value.is_empty() {
            return Err(format!("`{key}` is no mark, or lacks what comes after the colon"));
        }
        match key {
            "not run" => self.not_run = Some(value.to_owned()),
            "exits" => self.exits = value.parse().map_err(|_| format!("{value} is no exit code"))?,
            "prints" => self.prints.push(value.to_owned()),
            "until" => self.until = Some(value.to_owned()),
            _ => {
                return Err(format!(
                    "`{key}` is no mark: they are `not run`, `exits`, `prints` and `until`"
                ));
            }
        }
        Ok(())
    }
}

impl<'a> Fence<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let text = line.trim_start_matches(' ');
        let edge = text.chars().next().filter(|edge| "`~".contains(*edge))?;
        let info = text.trim_start_matches(edge);
        let bar = text.strip_suffix(info)?;
        let is_fence = bar.len() >= 3 && !info.contains('`');
        is_fence.then(|| Self {
            indent: line.len() - text.len(),
            bar,
            language: info
                .split([' ', ',', '{'])
                .find(|word| !word.is_empty())
                .unwrap_or(""),
        })
    }

    /// The lines up to the closing fence; none if there is none.
    fn block(&self, lines: &mut impl Iterator<Item = (usize, &'a str)>) -> Option<Lines<'a>> {
        let mut block = Vec::new();
        for (number, line) in lines {
            let text = line.trim();
            if text.starts_with(self.bar) && text.trim_start_matches(&self.bar[..1]).is_empty() {
                return Some(block);
            }
            let indent = line.len() - line.trim_start_matches(' ').len();
            block.push((number, &line[indent.min(self.indent)..]));
        }
        None
    }
}

/// Puts the lines of a block together to commands. In a block with a prompt, what
/// has none is output, or the rest of a command that was not complete.
fn commands(block: &[(usize, &str)]) -> Vec<Command> {
    let is_transcript = block.iter().any(|(_, line)| line.starts_with("$ "));
    let mut commands: Vec<Command> = Vec::new();
    let mut is_complete = true;
    for &(line, text) in block {
        let typed = match text.strip_prefix("$ ") {
            Some(typed) => typed,
            None if !is_complete => text.strip_prefix("> ").filter(|_| is_transcript).unwrap_or(text),
            None if is_transcript || text.trim().is_empty() || text.trim().starts_with('#') => continue,
            None => text,
        };
        if is_complete {
            commands.push(Command {
                line,
                text: String::new(),
                marks: Marks::default(),
            });
        }
        let command = commands.last_mut().expect("one was pushed");
        command.text += typed;
        command.text.push('\n');
        is_complete = shell::is_complete(&command.text);
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(page: &Page) -> Vec<(usize, &str)> {
        let commands = page.commands.iter();
        commands
            .map(|command| (command.line, command.text.trim_end()))
            .collect()
    }

    #[test]
    fn a_block_is_cut_into_complete_commands() {
        let page = Page::parse(
            "page.md",
            "Words.\n\n```sh\n# A remark.\none \\\n    --more\n\nfor x in 1 2; do\n    two \"$x\n  y\"\ndone\n\
             cat << END\nthree\nEND\nfour\n```\n\n```rust\nfive\n```\n\n````text\n```sh\nsix\n```\n````\n~~~ sh\nseven\n~~~\n",
        );
        let expected = [
            (5, "one \\\n    --more"),
            (8, "for x in 1 2; do\n    two \"$x\n  y\"\ndone"),
            (12, "cat << END\nthree\nEND"),
            (15, "four"),
            (28, "seven"),
        ];
        assert_eq!(texts(&page), expected);
        assert!(page.faults.is_empty(), "{page:?}");
    }

    #[test]
    fn a_transcript_has_prompts_and_output() {
        let page = Page::parse(
            "page.md",
            "1. So:\n\n   ```console\n   $ one \\\n   >   --more\n   done\n   $ two\n   ```\n",
        );
        assert_eq!(texts(&page), [(4, "one \\\n  --more"), (7, "two")]);
    }

    #[test]
    fn marks_are_for_the_last_command_of_the_next_block() {
        let page = Page::parse(
            "page.md",
            "<!-- exits: 1 -->\n<!-- prints: a: b -->\n\n```sh\none\ntwo\n```\n\n\
             <!-- not run: it takes an hour -->\n```sh\nthree\n```\n\n<!-- until: ready -->\n```bash\nfour\n```\n",
        );
        assert_eq!(texts(&page), [(5, "one"), (6, "two"), (16, "four")]);
        assert_eq!(page.commands[0].marks, Marks::default());
        assert_eq!(page.commands[1].marks.exits, 1);
        assert_eq!(page.commands[1].marks.prints, ["a: b"]);
        assert_eq!(page.commands[2].marks.until.as_deref(), Some("ready"));
        assert!(page.faults.is_empty(), "{page:?}");
    }

    #[test]
    fn what_would_be_overlooked_is_a_fault() {
        let faults = |text: &str| Page::parse("page.md", text).faults;
        for (text, fault) in [
            (
                "<!-- print: x -->\n```sh\none\n```\n",
                "page.md:1: `print` is no mark",
            ),
            (
                "<!-- not run: -->\n```sh\none\n```\n",
                "page.md:1: `not run` is no mark, or lacks",
            ),
            (
                "<!-- exits: badly -->\n```sh\none\n```\n",
                "page.md:1: badly is no exit code",
            ),
            (
                "<!-- exits: 1 -->\nWords.\n```sh\none\n```\n",
                "page.md:1: no shell block follows",
            ),
            (
                "<!-- exits: 1 -->\n```rust\none\n```\n",
                "page.md:1: no shell block follows",
            ),
            ("<!-- exits: 1 -->\n", "page.md:1: no shell block follows"),
            ("\n```sh\none\n", "page.md:2: the block has no end"),
            ("```sh\n# Nothing.\n```\n", "page.md:1: the block has no command"),
        ] {
            let faults = faults(text);
            assert!(
                faults.len() == 1 && faults[0].starts_with(fault),
                "{text:?} has {faults:?}"
            );
        }
        assert!(faults("<!-- A note to writers. -->\nWords.\n").is_empty());
    }
}
