# Runs git, with many short-lived children, pagers and packs.
command -v git > /dev/null || { echo 'skipped: no git'; exit 77; }
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_PAGER=cat
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_AUTHOR_DATE='2020-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
git init -q -b main repo && cd repo || exit
for i in 1 2 3; do echo "line $i" >> file; git add file; git commit -q -m "commit $i"; done
git checkout -q -b side HEAD~1 && echo side >> file && git commit -q -a -m side
git merge main; echo "merge: $?"
git status --short; git merge --abort
git log --oneline --graph --all
git diff --exit-code main side; echo "diff: $?"
git gc -q && git fsck --no-progress; echo "fsck: $?"
git clone -q . ../copy && git -C ../copy rev-parse HEAD
git archive main | tar -t
git no-such-verb; echo "verb: $?"
